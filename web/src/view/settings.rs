//! The settings that a person types: how to answer, and how much room the engine gets.
//!
//! It never guesses: what cannot be read is an error that names the field. Invariant: the ranges of an answer's settings are the
//! engine's own.

use crate::protocol::{EngineSettings, KvCache, Sampling};

/// What is wrong with which field.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{sentence}")]
pub struct FieldError {
    /// The field's name.
    pub field: &'static str,
    /// What it is, what it must be.
    pub sentence: String,
}

/// A field of a form: what it is called on the wire and on the page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Field {
    /// On the wire, and in the page's address.
    pub name: &'static str,
    /// On the page.
    pub label: &'static str,
    /// What may stand in it, and what it does.
    pub hint: &'static str,
}

const fn field(name: &'static str, label: &'static str, hint: &'static str) -> Field {
    Field { name, label, hint }
}

/// The fields of a [`SamplingForm`], in their order.
pub const SAMPLING: [Field; 10] = [
    field("max_tokens", "Longest answer", "Tokens; at least 1"),
    field("temperature", "Temperature", "0 always takes the likeliest token; up to 100"),
    field("top_k", "Top k", "Keep the k likeliest tokens; 0 keeps all"),
    field("top_p", "Top p", "Keep the likeliest that together reach this; above 0, at most 1"),
    field("min_p", "Min p", "Keep those at least this fraction of the likeliest; 0 to 1"),
    field("repetition_penalty", "Repetition penalty", "1 is off; above 0, at most 100"),
    field("presence_penalty", "Presence penalty", "0 is off; -100 to 100"),
    field("frequency_penalty", "Frequency penalty", "0 is off; -100 to 100"),
    field("seed", "Seed", "A whole number for the same answer again; empty draws one"),
    field("stop", "Stop texts", "One a line, 16 at most; the answer ends before the first that comes"),
];

/// How to answer, as it stands in the form.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SamplingForm {
    values: [String; SAMPLING.len()],
    /// Go on past end tokens.
    pub ignore_eos: bool,
}

impl Default for SamplingForm {
    fn default() -> Self {
        Self::of(&Sampling::default())
    }
}

impl SamplingForm {
    /// The form of settings.
    pub fn of(sampling: &Sampling) -> Self {
        let values = [
            sampling.max_tokens.to_string(),
            sampling.temperature.to_string(),
            sampling.top_k.to_string(),
            sampling.top_p.to_string(),
            sampling.min_p.to_string(),
            sampling.repetition_penalty.to_string(),
            sampling.presence_penalty.to_string(),
            sampling.frequency_penalty.to_string(),
            sampling.seed.map(|seed| seed.to_string()).unwrap_or_default(),
            sampling.stop.join("\n"),
        ];
        Self { values, ignore_eos: sampling.ignore_eos }
    }

    /// Always the likeliest token.
    pub fn greedy(mut self) -> Self {
        self.set("temperature", "0");
        self.set("top_k", "0");
        self.set("top_p", "1");
        self.set("min_p", "0");
        self.set("repetition_penalty", "1");
        self
    }

    /// Drawn from the likely ones.
    pub fn creative(mut self) -> Self {
        self.set("temperature", "0.8");
        self.set("top_k", "40");
        self.set("top_p", "0.95");
        self.set("min_p", "0.05");
        self.set("repetition_penalty", "1.1");
        self
    }

    /// What stands in a field; empty for a name that is none.
    pub fn get(&self, name: &str) -> &str {
        let at = SAMPLING.iter().position(|field| field.name == name);
        at.map_or("", |at| self.values[at].as_str())
    }

    /// Writes into a field.
    pub fn set(&mut self, name: &str, value: &str) {
        if let Some(at) = SAMPLING.iter().position(|field| field.name == name) {
            value.clone_into(&mut self.values[at]);
        }
    }

    /// The settings.
    ///
    /// # Errors
    /// A field that is no number, or outside the engine's range.
    pub fn read(&self) -> Result<Sampling, FieldError> {
        let seed = self.get("seed").trim();
        let sampling = Sampling {
            max_tokens: self.number("max_tokens", "a whole number of at least 1")?,
            temperature: self.number("temperature", "a number from 0 to 100")?,
            top_k: self.number("top_k", "a whole number of at least 0")?,
            top_p: self.number("top_p", "a number above 0, at most 1")?,
            min_p: self.number("min_p", "a number from 0 to 1")?,
            repetition_penalty: self.number("repetition_penalty", "a number above 0, at most 100")?,
            presence_penalty: self.number("presence_penalty", "a number from -100 to 100")?,
            frequency_penalty: self.number("frequency_penalty", "a number from -100 to 100")?,
            seed: match seed {
                "" => None,
                _ => Some(self.number("seed", "a whole number of at least 0, or empty")?),
            },
            stop: self.get("stop").lines().filter(|line| !line.is_empty()).map(str::to_owned).collect(),
            ignore_eos: self.ignore_eos,
        };
        validate(&sampling)?;
        Ok(sampling)
    }

    fn number<T: std::str::FromStr>(&self, name: &'static str, range: &str) -> Result<T, FieldError> {
        let value = self.get(name).trim();
        value.parse().map_err(|_| refused(&SAMPLING, name, value, range))
    }
}

fn refused(fields: &[Field], name: &'static str, value: &str, range: &str) -> FieldError {
    let label = fields.iter().find(|field| field.name == name).map_or(name, |field| field.label);
    // A pasted page would make a sentence of it.
    let shown: String = value.chars().take(24).collect();
    FieldError { field: name, sentence: format!("{label} is \u{201c}{shown}\u{201d}; it must be {range}.") }
}

/// Holds settings against the engine's ranges.
fn validate(sampling: &Sampling) -> Result<(), FieldError> {
    use firstlight_engine::request::RejectReason;
    match sampling.params(u64::default).validate() {
        Ok(()) => Ok(()),
        Err(RejectReason::InvalidParameter { name, value, range }) => {
            Err(refused(&SAMPLING, name, &value, range))
        }
        Err(other) => Err(FieldError { field: "max_tokens", sentence: other.to_string() }),
    }
}

/// The fields of an [`EngineForm`], in their order.
pub const ENGINE: [Field; 5] = [
    field("slots", "Slots", "Answers computed side by side; 1 to 64"),
    field("batch_tokens", "Tokens a step", "Prompt and answer tokens together; 1 to 8192"),
    field("block_size", "KV block size", "Tokens of one block; 1 to 256"),
    field("kv_blocks", "KV blocks", "Empty: as many as the model and the adapter call for"),
    field("max_model_len", "Longest context", "Prompt and answer in tokens; empty: the model's own"),
];

/// Room for the engine, as it stands in the form.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EngineForm {
    values: [String; ENGINE.len()],
    /// Prompts that begin alike share blocks.
    pub prefix_cache: bool,
    /// WebGPU's default limits and no optional feature.
    pub default_limits: bool,
    /// Activations in 8 bits.
    pub i8_activations: bool,
    /// How keys and values are kept.
    pub kv: KvCache,
}

impl Default for EngineForm {
    fn default() -> Self {
        let settings = EngineSettings::default();
        let optional = |value: Option<u32>| value.map(|value| value.to_string()).unwrap_or_default();
        let values = [
            settings.slots.to_string(),
            settings.batch_tokens.to_string(),
            settings.block_size.to_string(),
            optional(settings.kv_blocks),
            optional(settings.max_model_len),
        ];
        Self {
            values,
            prefix_cache: settings.prefix_cache,
            default_limits: settings.default_limits,
            i8_activations: settings.i8_activations,
            kv: settings.kv,
        }
    }
}

impl EngineForm {
    /// What stands in a field; empty for a name that is none.
    pub fn get(&self, name: &str) -> &str {
        let at = ENGINE.iter().position(|field| field.name == name);
        at.map_or("", |at| self.values[at].as_str())
    }

    /// Writes into a field.
    pub fn set(&mut self, name: &str, value: &str) {
        if let Some(at) = ENGINE.iter().position(|field| field.name == name) {
            value.clone_into(&mut self.values[at]);
        }
    }

    /// The settings.
    ///
    /// # Errors
    /// A field that is no number, or outside its range.
    pub fn read(&self) -> Result<EngineSettings, FieldError> {
        Ok(EngineSettings {
            slots: self.number("slots", 1, 64)?,
            batch_tokens: self.number("batch_tokens", 1, 8192)?,
            block_size: self.number("block_size", 1, 256)?,
            kv_blocks: self.optional("kv_blocks", 1, 1 << 20)?,
            max_model_len: self.optional("max_model_len", 2, 1 << 20)?,
            prefix_cache: self.prefix_cache,
            default_limits: self.default_limits,
            i8_activations: self.i8_activations,
            kv: self.kv,
        })
    }

    fn number(&self, name: &'static str, least: u32, most: u32) -> Result<u32, FieldError> {
        let value = self.get(name).trim();
        let number = value.parse().ok().filter(|number| (least..=most).contains(number));
        number.ok_or_else(|| refused(&ENGINE, name, value, &format!("a whole number from {least} to {most}")))
    }

    fn optional(&self, name: &'static str, least: u32, most: u32) -> Result<Option<u32>, FieldError> {
        match self.get(name).trim() {
            "" => Ok(None),
            _ => self.number(name, least, most).map(Some),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_untouched_form_says_the_defaults() {
        assert_eq!(SamplingForm::default().read(), Ok(Sampling::default()));
        assert_eq!(EngineForm::default().read(), Ok(EngineSettings::default()));
    }

    #[test]
    fn presets_are_within_the_engine_s_ranges() {
        let creative = SamplingForm::default().creative();
        assert!(creative.read().is_ok_and(|sampling| sampling.temperature > 0.0 && sampling.top_k == 40));
        assert_eq!(creative.greedy(), SamplingForm::default());
    }

    #[test]
    fn a_field_that_cannot_be_read_is_named() {
        let check = |name: &'static str, value: &str, expected: Option<&str>| {
            let mut form = SamplingForm::default();
            form.set(name, value);
            let got = form.read().err();
            assert_eq!(got.as_ref().map(|error| error.sentence.as_str()), expected, "{name} {value:?}");
            assert!(got.is_none_or(|error| error.field == name));
        };
        check("max_tokens", "0", Some("Longest answer is “0”; it must be at least 1."));
        check("max_tokens", "x", Some("Longest answer is “x”; it must be a whole number of at least 1."));
        check("temperature", "0.7", None);
        check("temperature", "", Some("Temperature is “”; it must be a number from 0 to 100."));
        check("temperature", "101", Some("Temperature is “101”; it must be 0 to 100."));
        check("temperature", "NaN", Some("Temperature is “NaN”; it must be 0 to 100."));
        check("top_p", "0", Some("Top p is “0”; it must be above 0, at most 1."));
        check("presence_penalty", "-101", Some("Presence penalty is “-101”; it must be -100 to 100."));
        check("seed", "-1", Some("Seed is “-1”; it must be a whole number of at least 0, or empty."));
        check("seed", "18446744073709551615", None);
        check("stop", "a\n\nb", None);
        check("stop", &"x\n".repeat(17), Some("Stop texts is “17 strings”; it must be at most 16 strings."));
    }

    #[test]
    fn room_for_the_engine_has_its_ranges() {
        let check = |name: &'static str, value: &str, expected: Option<&str>| {
            let mut form = EngineForm::default();
            form.set(name, value);
            assert_eq!(
                form.read().err().map(|error| error.sentence).as_deref(),
                expected,
                "{name} {value:?}"
            );
        };
        check("slots", "8", None);
        check("slots", "0", Some("Slots is “0”; it must be a whole number from 1 to 64."));
        check("kv_blocks", "", None);
        check(
            "kv_blocks",
            "2097152",
            Some("KV blocks is “2097152”; it must be a whole number from 1 to 1048576."),
        );
        check(
            "max_model_len",
            "1",
            Some("Longest context is “1”; it must be a whole number from 2 to 1048576."),
        );
    }
}
