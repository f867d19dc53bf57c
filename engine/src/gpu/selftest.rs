//! The kernels of a choice against their twins on the CPU, on small made-up data: an adapter that computes wrongly is refused
//! by the name of the kernel, before it prints garbage.
//!
//! Never touches a model's buffers. Invariant: the data are the same on every machine, so that a refusal can be repeated.

mod matrix;
mod rows;

use firstlight_shaders::kv_cache::StoredWord;
use firstlight_shaders::matmul::Store;
use firstlight_shaders::{Activations, ComposeError, Form, Program, WeightFormat, quantise, rope_kv_write};

use super::{AdapterFacts, Device, KernelCache, KernelChoice, MatmulShape, Probe, ProbeError, SampleOn};
use crate::error::DeviceError;

/// The largest normalised mean squared error of a kernel that counts as right: f32 sums in another order and exponentials of
/// the accuracy that WGSL demands stay a thousand times below it, one wrong number in a thousand lies far above.
pub const MAX_NMSE: f64 = 1e-8;

/// The same for a kernel that multiplies in half precision: what 11 bits lose, on these data, is a tenth of it.
pub const MAX_F16_NMSE: f64 = 1e-5;

/// The sizes that tell a model's pipelines from another's.
#[derive(Clone, Debug, PartialEq)]
pub struct Shapes {
    /// Width of the residual stream, a multiple of 8.
    pub hidden_size: u32,
    /// Query heads.
    pub num_heads: u32,
    /// Key and value heads; divides `num_heads`.
    pub num_kv_heads: u32,
    /// Dimensions of a head, a multiple of 8.
    pub head_dim: u32,
    /// Slots of a KV block.
    pub block_size: u32,
    /// How embeddings are stored.
    pub embeddings: Vec<WeightFormat>,
    /// The products.
    pub products: Vec<MatmulShape>,
}

impl Shapes {
    /// The default model's sizes, with weights in `formats`: every product in the first of them, one in each of the others.
    pub fn of_default_model(formats: &[WeightFormat], choice: KernelChoice, facts: &AdapterFacts) -> Self {
        let (hidden, inner) = (576u32.div_ceil(64), 1536u32.div_ceil(64));
        let norm_width = if choice.fuses_norms() { 576 } else { 0 };
        let work = |format| {
            // A model whose weights have other formats is loaded without.
            let fits = choice.activations.multiply(format);
            let activations = if fits { choice.activations } else { Activations::F32 };
            Form { home: choice.work_home, activations }
        };
        let product = |format, store, units, x| MatmulShape {
            format,
            store,
            bias: false,
            units,
            x,
            written: Form::PLAIN,
            norm_width: 0,
        };
        let head = Form { home: choice.work_home, activations: Activations::F32 };
        let mut products: Vec<_> = formats.iter().map(|&f| product(f, Store::Set, hidden, head)).collect();
        if let Some(&first) = formats.first() {
            let x = work(first);
            // Without 8 lanes the activation writes its columns one by one, and a quantised row comes from elsewhere.
            let lanes = choice.subgroups || x.activations == Activations::I8;
            let gated = if lanes { x } else { Form::PLAIN };
            let written = if choice.subgroups { x } else { Form::PLAIN };
            let add = if norm_width > 0 { Store::AddNorm } else { Store::Add };
            let rope = rope_kv_write::Variant {
                num_heads: 9,
                num_kv_heads: 3,
                head_vec4s: 16,
                block_size: 16,
                work_home: choice.work_home,
                kv: choice.kv,
            };
            let qkv = if choice.fuses_rope(rope, facts) { Store::RopeKv(rope) } else { Store::Set };
            products.extend([
                MatmulShape { norm_width, ..product(first, qkv, hidden, x) },
                MatmulShape { written, norm_width, ..product(first, add, hidden, x) },
                MatmulShape { written, norm_width, ..product(first, Store::Silu, hidden, x) },
                MatmulShape { written, norm_width, ..product(first, add, inner, gated) },
            ]);
        }
        Self {
            hidden_size: 576,
            num_heads: 9,
            num_kv_heads: 3,
            head_dim: 64,
            block_size: 16,
            embeddings: formats.to_vec(),
            products,
        }
    }
}

/// What a word of an output should be afterwards.
#[derive(Clone, Copy, Debug)]
enum Word {
    /// About this number.
    Number(f64),
    /// Exactly this one.
    Token(u32),
    /// Two whole numbers, the first 16 bits higher, each of them at most 1 beside: a tie may fall either way.
    Pair(u32),
    /// What a KV cache holds in its place, rounded.
    Stored(StoredWord),
    /// What it was before.
    Kept,
    /// The kernel may leave anything here.
    Any,
}

impl From<StoredWord> for Word {
    fn from(word: StoredWord) -> Self {
        match word {
            StoredWord::Number(number) => Self::Number(f64::from(number)),
            rounded => Self::Stored(rounded),
        }
    }
}

/// What outputs hold beforehand: a NaN that no arithmetic makes.
const POISON: f32 = f32::from_bits(0xffbd_5bad);

/// One kernel with its data and what should come of them.
#[derive(Clone, Debug)]
pub struct Case {
    /// The kernel. Tests change its text to see the change found.
    pub program: Program,
    contents: Vec<Vec<u8>>,
    grid: [u32; 3],
    /// For each written binding in order: its place among the bindings, and its words.
    wanted: Vec<(usize, Vec<Word>)>,
}

impl Case {
    /// The largest error that counts as right.
    fn max_nmse(&self) -> f64 {
        if self.program.f16() { MAX_F16_NMSE } else { MAX_NMSE }
    }

    /// The normalised mean squared error of what the kernel wrote; infinite where a number is none, or where something is
    /// written that should have been kept.
    fn error(&self, written: &[Vec<u8>]) -> f64 {
        let (mut error, mut power) = (0.0, 0.0);
        for ((binding, words), bytes) in self.wanted.iter().zip(written) {
            let read = |bytes: &[u8]| -> Vec<u32> { bytemuck::pod_collect_to_vec(bytes) };
            for ((word, got), before) in words.iter().zip(read(bytes)).zip(read(&self.contents[*binding])) {
                let right = match *word {
                    Word::Number(wanted) => {
                        let got = f64::from(f32::from_bits(got));
                        error += (got - wanted).powi(2);
                        power += wanted * wanted;
                        got.is_finite()
                    }
                    Word::Token(token) => got == token,
                    Word::Pair(pair) => {
                        let near = |a: i32, b: i32| a.abs_diff(b) <= 1;
                        let ((a, b), (c, d)) = (halves(got), halves(pair));
                        near(a, c) && near(b, d)
                    }
                    Word::Stored(word) => word.allows(got),
                    Word::Kept => got == before,
                    Word::Any => true,
                };
                if !right {
                    return f64::INFINITY;
                }
            }
        }
        error / power.max(f64::MIN_POSITIVE)
    }
}

/// A kernel that was run.
#[derive(Clone, Debug, PartialEq)]
pub struct Checked {
    /// The kernel's name and choices.
    pub kernel: String,
    /// Normalised mean squared error against its twin; infinite where it wrote no number, a wrong token, or outside its place.
    pub nmse: f64,
    /// The largest error that counts as right.
    pub max_nmse: f64,
}

impl Checked {
    /// Whether the kernel computes what it should.
    pub fn ok(&self) -> bool {
        self.nmse <= self.max_nmse
    }
}

/// Every kernel that `choice` means for a model of these shapes, with its data.
///
/// # Errors
/// Our bug: a text could not be put together.
pub fn cases(choice: KernelChoice, shapes: &Shapes) -> Result<Vec<Case>, ComposeError> {
    let mut cases = Vec::new();
    for &product in &shapes.products {
        for &tile in choice.matmul_tiles() {
            cases.push(match product.store {
                Store::RopeKv(rope) => matrix::placed(tile, product, rope, choice)?,
                _ => matrix::product(tile, product, choice)?,
            });
        }
    }
    for &format in &shapes.embeddings {
        cases.push(matrix::embedding(format, choice)?);
    }
    cases.push(match choice.fuses_norms() {
        true => rows::norm_parts(shapes, choice)?,
        false => rows::norm(shapes, false, choice)?,
    });
    cases.push(rows::norm(shapes, true, choice)?);
    if !shapes.products.iter().any(|product| matches!(product.store, Store::RopeKv(_))) {
        cases.push(rows::rope(shapes, choice)?);
    }
    cases.push(rows::attention(shapes, choice)?);
    cases.push(rows::silu()?);
    if choice.activations == Activations::I8 {
        cases.push(rows::quantised(choice)?);
    }
    if choice.sample_on == SampleOn::Gpu {
        cases.push(rows::sampling()?);
    }
    Ok(cases)
}

/// Runs `cases` one after another.
///
/// # Errors
/// A kernel that does not compile, memory, a lost device; wrong numbers are no error here.
pub async fn measure(
    device: &Device,
    kernels: &mut KernelCache,
    cases: &[Case],
) -> Result<Vec<Checked>, ProbeError> {
    let mut checked = Vec::with_capacity(cases.len());
    for case in cases {
        let contents: Vec<&[u8]> = case.contents.iter().map(Vec::as_slice).collect();
        let probe = Probe::new(device, kernels, case.program.clone(), &contents).await?;
        let written = probe.run(device, case.grid, 1).await?;
        let (kernel, nmse) = (case.program.name.clone(), case.error(&written));
        checked.push(Checked { kernel, nmse, max_nmse: case.max_nmse() });
    }
    Ok(checked)
}

/// Refuses an adapter on which one of `checked` is wrong.
///
/// # Errors
/// [`DeviceError::SelfTest`] with the first wrong kernel's name.
pub fn refuse_wrong(facts: &AdapterFacts, checked: &[Checked]) -> Result<(), DeviceError> {
    match checked.iter().find(|one| !one.ok()) {
        None => Ok(()),
        Some(wrong) => Err(DeviceError::SelfTest {
            kernel: wrong.kernel.clone(),
            adapter: facts.name.clone(),
            nmse: wrong.nmse,
        }),
    }
}

/// Runs every kernel that `choice` means for a model of these shapes, and refuses the adapter if one is wrong.
///
/// # Errors
/// [`DeviceError::SelfTest`] with the kernel's name; else as [`measure`].
pub async fn self_test(
    device: &Device,
    kernels: &mut KernelCache,
    choice: KernelChoice,
    shapes: &Shapes,
) -> Result<Vec<Checked>, ProbeError> {
    let checked = measure(device, kernels, &cases(choice, shapes)?).await?;
    refuse_wrong(device.facts(), &checked)?;
    Ok(checked)
}

/// SplitMix64: the same numbers everywhere.
struct Numbers(u64);

impl Numbers {
    fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// Between -1 and 1.
    fn float(&mut self) -> f32 {
        (self.bits() >> 40) as f32 / 8_388_608.0 - 1.0
    }

    fn floats(&mut self, count: u32) -> Vec<f32> {
        (0..count).map(|_| self.float()).collect()
    }
}

/// The bytes of plain numbers.
fn bytes_of<T: bytemuck::NoUninit>(values: &[T]) -> Vec<u8> {
    bytemuck::cast_slice(values).to_vec()
}

fn numbers(values: Vec<f64>) -> Vec<Word> {
    values.into_iter().map(Word::Number).collect()
}

/// The two numbers of a word of [`Word::Pair`].
fn halves(pair: u32) -> (i32, i32) {
    let lower = i32::from(pair as u16 as i16);
    ((pair as i32).wrapping_sub(lower) >> 16, lower)
}

/// A row made `pitch` long.
fn padded<T: Clone>(mut row: Vec<T>, pitch: u32, by: T) -> Vec<T> {
    row.resize(pitch as usize, by);
    row
}

/// What a kernel should write that stores rows of `width` numbers as `activations`.
fn rows_as(activations: Activations, width: u32, rows: &[f64]) -> Vec<Word> {
    if activations == Activations::F32 {
        return numbers(rows.to_vec());
    }
    rows.chunks(width as usize)
        .flat_map(|row| {
            let row: Vec<f32> = row.iter().map(|&value| value as f32).collect();
            let words = quantise::cpu(&row).0;
            let halves = row.len().div_ceil(16);
            (0..).zip(words).map(move |(at, word)| quantised_word(at, word, halves))
        })
        .collect()
}

/// Word `at` of such a row of `halves` halves of a block, which is `word`.
fn quantised_word(at: usize, word: u32, halves: usize) -> Word {
    let (unit, texel) = (at / 48, at % 48 / 4);
    let half = 4 * unit + if texel < 8 { texel / 2 } else { texel - 8 };
    match texel {
        // Some kernels write whole halves or blocks, others whole units.
        _ if half >= halves => Word::Any,
        0..8 => Word::Pair(word),
        _ => Word::Number(f64::from(f32::from_bits(word))),
    }
}
