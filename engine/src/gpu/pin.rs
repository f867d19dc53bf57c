//! A choice of kernels in words: what a file pins, what is kept between runs, what the doctor prints.
//!
//! Never reads a file. Invariant: the words of a choice give that choice back, and a choice that was read fits its adapter.

use firstlight_shaders::matmul_tiled::Arithmetic;
use firstlight_shaders::weights::Home;
use firstlight_shaders::{Activations, KvFormat};
use serde_json::{Map, Value};

use super::{AdapterFacts, KernelChoice, MatmulFamily, SampleOn};

/// Why a choice in words is none for this adapter. Reads on after the name of a file and a colon.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PinError {
    /// The text is no JSON.
    #[error("it is no JSON ({0})")]
    NotJson(String),
    /// It is JSON without a choice.
    #[error("it has no kernels in it; they are an object with some of {0}")]
    Empty(String),
    /// A field that no choice has.
    #[error("{name:?} is no part of a choice; these are: {known}")]
    UnknownField {
        /// The field.
        name: String,
        /// Those that there are.
        known: String,
    },
    /// A value that a field cannot have.
    #[error("{field} is {value}; it must be {known}")]
    UnknownWord {
        /// The field.
        field: &'static str,
        /// What it is.
        value: String,
        /// What it may be.
        known: String,
    },
    /// Kernels that this adapter cannot run, or that do not go together.
    #[error("{0}")]
    Unfit(String),
}

type Words<T> = [(&'static str, T)];

const MATMUL: &Words<MatmulFamily> = &[
    ("lanes", MatmulFamily::Lanes),
    ("split", MatmulFamily::Split),
    ("quads", MatmulFamily::Quads { lanes: 0 }),
    ("quads-16", MatmulFamily::Quads { lanes: 16 }),
    ("quads-32", MatmulFamily::Quads { lanes: 32 }),
    ("quads-64", MatmulFamily::Quads { lanes: 64 }),
];
const HOME: &Words<Home> = &[("buffer", Home::Buffer), ("texture", Home::Texture)];
const SWITCH: &Words<bool> = &[("on", true), ("off", false)];
const SAMPLE_ON: &Words<SampleOn> = &[("cpu", SampleOn::Cpu), ("gpu", SampleOn::Gpu)];
const KV: &Words<KvFormat> = &[("f32", KvFormat::F32), ("f16", KvFormat::F16), ("q8", KvFormat::Q8)];
const ACTIVATIONS: &Words<Activations> = &[("f32", Activations::F32), ("i8", Activations::I8)];
const TILES: &Words<Arithmetic> = &[("f32", Arithmetic::F32), ("f16", Arithmetic::F16)];

/// What is quoted of a value that a file chose.
const MAX_QUOTED: usize = 60;

fn word<T: Copy + PartialEq>(words: &Words<T>, value: T) -> &'static str {
    words.iter().find(|(_, known)| *known == value).map_or("", |(word, _)| word)
}

fn read<T: Copy>(words: &Words<T>, field: &'static str, value: &Value) -> Result<T, PinError> {
    let text = value.as_str();
    let found = words.iter().find(|(word, _)| Some(*word) == text);
    found.map(|(_, value)| *value).ok_or_else(|| PinError::UnknownWord {
        field,
        value: value.to_string().chars().take(MAX_QUOTED).collect(),
        known: words.iter().map(|(word, _)| *word).collect::<Vec<_>>().join(" or "),
    })
}

impl KernelChoice {
    /// Its fields, each in a word.
    pub fn words(self) -> Vec<(&'static str, &'static str)> {
        // Named one by one: a field that is added here and not below is found by the test of this file.
        let Self { matmul, home, work_home, subgroups, quads, sample_on, activations, tile_arithmetic, kv } =
            self;
        vec![
            ("matmul", word(MATMUL, matmul)),
            ("weights", word(HOME, home)),
            ("work", word(HOME, work_home)),
            ("subgroups", word(SWITCH, subgroups)),
            ("fours", word(SWITCH, quads)),
            ("sampling", word(SAMPLE_ON, sample_on)),
            ("activations", word(ACTIVATIONS, activations)),
            ("tiles", word(TILES, tile_arithmetic)),
            ("kv", word(KV, kv)),
        ]
    }

    fn set(&mut self, name: &str, value: &Value) -> Result<(), PinError> {
        match name {
            "matmul" => self.matmul = read(MATMUL, "matmul", value)?,
            "weights" => self.home = read(HOME, "weights", value)?,
            "work" => self.work_home = read(HOME, "work", value)?,
            "subgroups" => self.subgroups = read(SWITCH, "subgroups", value)?,
            "fours" => self.quads = read(SWITCH, "fours", value)?,
            "sampling" => self.sample_on = read(SAMPLE_ON, "sampling", value)?,
            "activations" => self.activations = read(ACTIVATIONS, "activations", value)?,
            "tiles" => self.tile_arithmetic = read(TILES, "tiles", value)?,
            "kv" => self.kv = read(KV, "kv", value)?,
            _ => {
                let name = name.chars().take(MAX_QUOTED).collect();
                return Err(PinError::UnknownField { name, known: self.field_names() });
            }
        }
        Ok(())
    }

    fn field_names(self) -> String {
        self.words().iter().map(|(name, _)| *name).collect::<Vec<_>>().join(", ")
    }

    /// The choice as a JSON object of words.
    pub fn to_json(self) -> Value {
        let pair = |(name, word): (&str, &str)| (name.to_owned(), Value::from(word));
        Value::Object(self.words().into_iter().map(pair).collect::<Map<_, _>>())
    }

    /// The choice in `value`, an object of words; what it does not name is as here.
    ///
    /// # Errors
    /// A field or a word that is unknown, or kernels that `facts` cannot run.
    pub fn with(mut self, value: &Value, facts: &AdapterFacts) -> Result<Self, PinError> {
        let fields = value.as_object().filter(|fields| !fields.is_empty());
        let fields = fields.ok_or_else(|| PinError::Empty(self.field_names()))?;
        fields.iter().try_for_each(|(name, value)| self.set(name, value))?;
        self.fits(facts).map(|()| self)
    }

    /// The choice that a file pins: such an object, or what the doctor prints as JSON, or what was kept of a trial. What it
    /// does not name is the adapter's own.
    ///
    /// # Errors
    /// As [`Self::with`]; a text that is no JSON.
    pub fn pinned(json: &[u8], facts: &AdapterFacts) -> Result<Self, PinError> {
        let value: Value =
            serde_json::from_slice(json).map_err(|error| PinError::NotJson(error.to_string()))?;
        let inner = ["/chosen/choice", "/choice"].iter().find_map(|place| value.pointer(place));
        Self::for_adapter(facts).with(inner.unwrap_or(&value), facts)
    }

    /// Whether an adapter can run these kernels together.
    ///
    /// # Errors
    /// [`PinError::Unfit`] says what is in the way.
    pub fn fits(self, facts: &AdapterFacts) -> Result<(), PinError> {
        let unfit = |reason: String| Err(PinError::Unfit(reason));
        if self.subgroups && !(facts.subgroups && facts.subgroup_min_size >= 8) {
            let has = match facts.subgroups {
                true => format!("subgroups of {}", facts.subgroup_min_size),
                false => "none".to_owned(),
            };
            return unfit(format!("subgroups of 8 or more lanes are needed, and {} has {has}", facts.name));
        }
        if self.quads && (self.subgroups || !facts.subgroups || facts.subgroup_min_size < 4) {
            return unfit("fours are for where subgroups are off and have 4 lanes or more".into());
        }
        let lanes = self.matmul.lanes();
        if lanes > 0 && !(facts.subgroups && facts.subgroup_min_size >= lanes) {
            return unfit(format!(
                "matmul quads-{lanes} wants {lanes} lanes in every subgroup, and {} does not promise them; quads does \
                 without",
                facts.name
            ));
        }
        let family = word(MATMUL, self.matmul);
        let is_lanes = self.matmul == MatmulFamily::Lanes;
        if !is_lanes && (self.home, self.work_home) != (Home::Buffer, Home::Buffer) {
            return unfit(format!(
                "the kernels of matmul {family} read buffers; weights and work must be buffer"
            ));
        }
        if !self.has(self.activations) {
            return unfit(format!("the kernels of matmul {family} multiply f32; activations must be f32"));
        }
        if self.tile_arithmetic == Arithmetic::F16 && (is_lanes || !facts.f16) {
            let reason =
                if is_lanes { "matmul lanes has no tiles" } else { "the adapter lacks 16-bit floats" };
            return unfit(format!("{reason}; tiles must be f32"));
        }
        Ok(())
    }
}

#[cfg(test)]
pub(super) mod tests {
    use firstlight_shaders::rope_kv_write;

    use super::*;

    pub(in crate::gpu) fn facts(is_cpu: bool, lanes: u32) -> AdapterFacts {
        AdapterFacts {
            index: 0,
            name: "an adapter".into(),
            driver: "a driver 1".into(),
            backend: "vulkan".into(),
            is_cpu,
            subgroups: lanes > 0,
            subgroup_min_size: lanes,
            subgroup_max_size: lanes,
            f16: false,
            timestamps: true,
            max_binding_bytes: 1 << 27,
            max_buffer_bytes: 1 << 28,
            max_texture_side: 8192,
            max_workgroup_bytes: 1 << 14,
            max_workgroups: 65_535,
            max_storage_buffers: 64,
            max_storage_textures: 64,
        }
    }

    #[test]
    fn the_words_of_a_choice_give_it_back() {
        for facts in [facts(true, 8), facts(true, 4), facts(true, 0), facts(false, 32), facts(false, 0)] {
            let candidates = KernelChoice::candidates(&facts);
            assert_eq!(candidates[0], KernelChoice::for_adapter(&facts));
            for choice in candidates {
                // From another one, so that every field has to come from the words.
                let other = KernelChoice {
                    matmul: MatmulFamily::Lanes,
                    home: Home::Texture,
                    work_home: Home::Texture,
                    subgroups: !choice.subgroups,
                    sample_on: SampleOn::Cpu,
                    activations: Activations::I8,
                    tile_arithmetic: Arithmetic::F16,
                    quads: !choice.quads,
                    kv: KvFormat::Q8,
                };
                assert_eq!(other.with(&choice.to_json(), &facts), Ok(choice));
                let text = serde_json::json!({ "chosen": { "choice": choice.to_json() } }).to_string();
                assert_eq!(KernelChoice::pinned(text.as_bytes(), &facts), Ok(choice), "{text}");
            }
        }
    }

    #[test]
    fn a_product_writes_the_cache_where_a_kernel_may_bind_as_much() {
        let rope = |kv| rope_kv_write::Variant {
            num_heads: 9,
            num_kv_heads: 3,
            head_vec4s: 16,
            block_size: 16,
            work_home: Home::Texture,
            kv,
        };
        let check = |choice: KernelChoice, facts: &AdapterFacts, kv, expected: bool| {
            assert_eq!(choice.fuses_rope(rope(kv), facts), expected, "{choice}, {kv:?}");
        };
        let lavapipe = facts(true, 8);
        let usual = KernelChoice::for_adapter(&lavapipe);
        check(usual, &lavapipe, KvFormat::F16, true);
        check(usual, &lavapipe, KvFormat::Q8, false);
        // A browser's defaults.
        let browser = AdapterFacts { max_storage_buffers: 8, max_storage_textures: 4, ..lavapipe.clone() };
        check(usual, &browser, KvFormat::F16, false);
        let work_in_buffers = KernelChoice { work_home: Home::Buffer, ..usual };
        check(work_in_buffers, &browser, KvFormat::F16, true);
        check(KernelChoice { home: Home::Buffer, ..work_in_buffers }, &browser, KvFormat::F16, false);
        for facts in [facts(true, 4), facts(false, 32)] {
            check(KernelChoice::for_adapter(&facts), &facts, KvFormat::F16, false);
        }
    }

    fn check(text: &str, facts: &AdapterFacts, expected: &str) {
        match KernelChoice::pinned(text.as_bytes(), facts) {
            Ok(choice) => assert!(choice.to_string().contains(expected), "{text}: {choice}"),
            Err(error) => assert!(error.to_string().contains(expected), "{text}: {error}"),
        }
    }

    #[test]
    fn a_file_pins_what_it_names_or_says_what_is_wrong() {
        let (lavapipe, narrow, gpu) = (facts(true, 8), facts(true, 4), facts(false, 32));
        let in_buffers = "weights in buffers and work in textures, with subgroups, sampling on the CPU";
        check(r#"{"weights": "buffer", "sampling": "cpu"}"#, &lavapipe, in_buffers);
        check(r#"{"choice": {"weights": "buffer", "sampling": "cpu"}}"#, &lavapipe, in_buffers);
        check("{", &lavapipe, "it is no JSON");
        check("[1]", &lavapipe, "it has no kernels in it; they are an object with some of matmul, weights");
        check("{}", &lavapipe, "it has no kernels in it");
        check(r#"{"weight": "buffer"}"#, &lavapipe, "\"weight\" is no part of a choice; these are: matmul");
        check(r#"{"weights": "heap"}"#, &lavapipe, "weights is \"heap\"; it must be buffer or texture");
        check(r#"{"subgroups": true}"#, &lavapipe, "subgroups is true; it must be on or off");
        check(
            r#"{"subgroups": "on"}"#,
            &narrow,
            "8 or more lanes are needed, and an adapter has subgroups of 4",
        );
        check(r#"{"subgroups": "on"}"#, &facts(true, 0), "an adapter has none");
        check(r#"{"fours": "on"}"#, &lavapipe, "fours are for where subgroups are off");
        check(r#"{"kv": "q8"}"#, &lavapipe, "q8 KV cache");
        check(r#"{"weights": "texture"}"#, &gpu, "weights and work must be buffer");
        check(r#"{"activations": "i8"}"#, &gpu, "activations must be f32");
        check(r#"{"matmul": "quads"}"#, &gpu, "matmul quads, weights in buffers, without subgroups");
        check(r#"{"matmul": "quads-64"}"#, &gpu, "wants 64 lanes in every subgroup");
        check(r#"{"tiles": "f16"}"#, &gpu, "the adapter lacks 16-bit floats; tiles must be f32");
        let halves = AdapterFacts { f16: true, ..gpu };
        check(r#"{"tiles": "f16"}"#, &halves, "quads of 32 lanes, weights in buffers, without subgroups");
        check(r#"{"tiles": "f16"}"#, &lavapipe, "matmul lanes has no tiles");
    }
}
