//! Attention over the paged cache, every variant and format: every context at every block size, masked slots that hold no numbers,
//! and bits that depend on nothing but a sequence's own positions.

use std::ops::Range;

use firstlight_shaders::kv_cache::CacheShape;
use firstlight_shaders::paged_attention::{Params, Variant, cpu};
use firstlight_shaders::{Activations, Home, KvFormat};
use firstlight_tests::TestRng;

use super::{Bench, bits, check_close, floats, inside, poison};

#[derive(Clone, Copy, Debug)]
struct Shape {
    head_dim: usize,
    head_group: usize,
    num_kv_heads: usize,
    work_home: Home,
    kv: KvFormat,
    subgroups: bool,
    few_threads: bool,
}

/// With subgroups or without, and whether with few threads.
const KINDS: [(bool, bool); 3] = [(true, true), (false, true), (false, false)];

impl Shape {
    fn variant(self, block_size: usize) -> Variant {
        Variant {
            block_size: block_size as u32,
            head_vec4s: self.head_dim as u32 / 4,
            head_group: self.head_group as u32,
            work_home: self.work_home,
            kv: self.kv,
            y_home: self.work_home,
            activations: Activations::F32,
            subgroups: self.subgroups,
            few_threads: self.few_threads,
        }
    }

    fn num_heads(self) -> usize {
        self.head_group * self.num_kv_heads
    }

    fn scale(self) -> f32 {
        (1.0 / (self.head_dim as f64).sqrt()) as f32
    }

    fn cache(self, block_size: usize) -> CacheShape {
        CacheShape { format: self.kv, head_dim: self.head_dim as u32, block_size: block_size as u32 }
    }

    fn bench(self) -> Bench {
        if self.subgroups { Bench::new() } else { Bench::with_default_limits() }
    }
}

/// The default model's heads, and the homes that adapters get.
fn default_shape((subgroups, few_threads): (bool, bool)) -> Shape {
    let work_home = if subgroups { Home::Texture } else { Home::Buffer };
    let kv = KvFormat::F32;
    Shape { head_dim: 64, head_group: 3, num_kv_heads: 2, work_home, kv, subgroups, few_threads }
}

/// The same in every kind and format.
fn default_shapes() -> impl Iterator<Item = Shape> {
    let formats = |kind| KvFormat::ALL.map(|kv| Shape { kv, ..default_shape(kind) });
    KINDS.into_iter().flat_map(formats)
}

/// A sequence of `asks.end` positions in the cache, of which `asks` are rows of the batch: the last one is a decode row.
#[derive(Clone)]
struct Sequence {
    asks: Range<usize>,
    /// Of every position: `[heads][head_dim]`.
    q: Vec<Vec<f32>>,
    k: Vec<Vec<f32>>,
    v: Vec<Vec<f32>>,
}

impl Sequence {
    /// What a position holds depends on `seed` and the position alone.
    fn new(shape: Shape, seed: u64, asks: Range<usize>) -> Self {
        let mut random = TestRng::new(seed);
        let (q_width, kv_width) = (shape.num_heads() * shape.head_dim, shape.num_kv_heads * shape.head_dim);
        let mut sequence = Self { q: Vec::new(), k: Vec::new(), v: Vec::new(), asks };
        for _ in 0..sequence.asks.end {
            sequence.q.push(floats(&mut random, q_width).iter().map(|x| x * 4.0).collect());
            sequence.k.push(floats(&mut random, kv_width));
            sequence.v.push(floats(&mut random, kv_width));
        }
        sequence
    }

    /// `[heads][head_dim]` of the row at `position`, with keys and values as the cache has them.
    fn expected(&self, shape: Shape, position: usize) -> Vec<f64> {
        let d = shape.head_dim;
        let visible = |of: &'_ [Vec<f32>], head: usize| -> Vec<Vec<f32>> {
            of[..=position].iter().map(|row| shape.cache(8).rounded(&row[head * d..][..d])).collect()
        };
        let mut out = Vec::new();
        for head in 0..shape.num_heads() {
            let (keys, values) =
                (visible(&self.k, head / shape.head_group), visible(&self.v, head / shape.head_group));
            let keys: Vec<&[f32]> = keys.iter().map(Vec::as_slice).collect();
            let values: Vec<&[f32]> = values.iter().map(Vec::as_slice).collect();
            out.extend(cpu(&self.q[position][head * d..][..d], &keys, &values, f64::from(shape.scale())));
        }
        out
    }
}

/// Sequences in blocks that are nowhere near each other. What is nobody's, or not yet anybody's, is no number.
struct Cache {
    tables: Vec<u32>,
    table_pitch: usize,
    keys: Vec<u32>,
    values: Vec<u32>,
}

impl Cache {
    fn new(shape: Shape, block_size: usize, sequences: &[Sequence]) -> Self {
        let (heads, d) = (shape.num_kv_heads, shape.head_dim);
        let blocks = |s: &Sequence| s.asks.end.div_ceil(block_size);
        let num_blocks = 2 * sequences.iter().map(blocks).sum::<usize>() + 1;
        let mut free: Vec<usize> = (0..num_blocks).collect();
        let mut random = TestRng::new(num_blocks as u64);
        for i in (1..num_blocks).rev() {
            free.swap(i, random.below(i + 1));
        }
        let nobodys = free.pop().unwrap_or(0);
        let table_pitch = sequences.iter().map(blocks).max().unwrap_or(0) + 2;
        let mut tables = vec![nobodys as u32; sequences.len() * table_pitch];
        // No number in any format.
        let cache = shape.cache(block_size);
        let mut keys = vec![u32::MAX; cache.key_words(num_blocks * heads)];
        let mut values = vec![u32::MAX; cache.value_words(num_blocks * heads)];
        for (sequence, table) in sequences.iter().zip(tables.chunks_mut(table_pitch)) {
            for (entry, block) in table.iter_mut().zip(free.drain(..blocks(sequence))) {
                *entry = block as u32;
            }
            for (position, (k, v)) in sequence.k.iter().zip(&sequence.v).enumerate() {
                let slot = position % block_size;
                for (head, (k, v)) in k.chunks(d).zip(v.chunks(d)).enumerate() {
                    let row = table[position / block_size] as usize * heads + head;
                    let (key, value) = cache.put(row, slot, k, v);
                    key.into_iter().for_each(|(at, word)| keys[at] = word.bits());
                    value.into_iter().for_each(|(at, word)| values[at] = word.bits());
                }
            }
        }
        Self { tables, table_pitch, keys, values }
    }
}

/// All rows of `sequences` in one dispatch, `[rows][heads][head_dim]`.
fn run(bench: &mut Bench, shape: Shape, block_size: usize, sequences: &[Sequence]) -> Vec<Vec<f32>> {
    let cache = Cache::new(shape, block_size, sequences);
    let width = shape.num_heads() * shape.head_dim;
    let (q_pitch, y_pitch) = (width + 2 * shape.num_kv_heads * shape.head_dim + 4, width + 8);
    let (mut rows, mut qkv) = (Vec::new(), Vec::new());
    for (sequence, index) in sequences.iter().zip(0u32..) {
        for position in sequence.asks.clone() {
            rows.push([u32::MAX, position as u32, u32::MAX, index]);
            qkv.extend_from_slice(&sequence.q[position]);
            // Keys and values come from the cache, never from here.
            qkv.resize(rows.len() * q_pitch, f32::NAN);
        }
    }
    let params = Params {
        q_pitch: q_pitch as u32 / 4,
        y_pitch: y_pitch as u32 / 4,
        num_kv_heads: shape.num_kv_heads as u32,
        head_group: shape.head_group as u32,
        table_pitch: cache.table_pitch as u32,
        scale: shape.scale(),
    };
    let program = shape.variant(block_size).program().expect("it composes");
    let what = program.name.clone();
    let written = bench.run(
        program,
        &[
            bytemuck::bytes_of(&params),
            bytemuck::cast_slice(&rows),
            bytemuck::cast_slice(&cache.tables),
            bytemuck::cast_slice(&qkv),
            bytemuck::cast_slice(&cache.keys),
            bytemuck::cast_slice(&cache.values),
            bytemuck::cast_slice(&poison(rows.len() * y_pitch)),
        ],
        shape.variant(block_size).workgroups(shape.num_heads() as u32, rows.len() as u32),
    );
    inside(&what, &written, y_pitch, width).into_iter().map(<[f32]>::to_vec).collect()
}

fn check(bench: &mut Bench, shape: Shape, block_size: usize, sequences: &[Sequence]) {
    let got = run(bench, shape, block_size, sequences);
    let asked = sequences.iter().flat_map(|s| s.asks.clone().map(move |position| (s, position)));
    for ((sequence, position), got) in asked.zip(got) {
        let what = format!("{shape:?}, blocks of {block_size}, row at {position} of {:?}", sequence.asks);
        check_close(&what, &got, &sequence.expected(shape, position));
    }
}

/// Decode rows and prompt chunks, at the edges of blocks and turns.
fn mixed(shape: Shape) -> Vec<Sequence> {
    let decode = [200, 1, 7, 8, 9, 15, 16, 17, 63, 64, 65].map(|context| context - 1..context);
    let chunks = [0..18, 31..33, 5..9, 60..70];
    let asks = decode.into_iter().chain(chunks);
    asks.zip(1..).map(|(asks, seed)| Sequence::new(shape, seed, asks)).collect()
}

#[test]
fn every_context_at_every_block_size() {
    for shape in default_shapes() {
        let mut bench = shape.bench();
        for block_size in [8, 16, 32] {
            check(&mut bench, shape, block_size, &mixed(shape));
        }
    }
}

#[test]
fn heads_and_groups_of_other_sizes() {
    for default in default_shapes() {
        let mut bench = default.bench();
        for (head_dim, head_group, num_kv_heads) in
            [(24, 7, 1), (128, 4, 1), (24, 1, 2), (8, 3, 1), (40, 4, 2), (80, 8, 1)]
                .into_iter()
                // A format knows the head's size alone, and each kernel takes the driver's compiler a while.
                .take(if default.kv == KvFormat::F32 { 6 } else { 2 })
        {
            let shape = Shape { head_dim, head_group, num_kv_heads, ..default };
            let asks = [0..10, 16..17, 64..65, 62..66];
            let sequences: Vec<_> =
                asks.into_iter().zip(1..).map(|(asks, seed)| Sequence::new(shape, seed, asks)).collect();
            check(&mut bench, shape, 16, &sequences);
        }
    }
}

/// Wherever the cache and the rows live, the bits are the same; blocks may end in the middle of a texture's row.
#[test]
fn homes_do_not_matter() {
    for shape in default_shapes() {
        let mut bench = shape.bench();
        let mut at = |work_home, block_size| {
            let rows = run(&mut bench, Shape { work_home, ..shape }, block_size, &mixed(shape));
            rows.iter().map(|row| bits(row)).collect::<Vec<_>>()
        };
        for block_size in if shape.kv == KvFormat::F32 { vec![8, 16, 24] } else { vec![24] } {
            assert!(at(Home::Texture, block_size) == at(Home::Buffer, block_size), "{shape:?} {block_size}");
        }
    }
}

/// A row alone, in a batch, in another order, in other blocks and as the last of a chunk: the same bits.
#[test]
fn company_and_blocks_do_not_matter() {
    for shape in default_shapes() {
        let mut bench = shape.bench();
        let mut sequences = mixed(shape);
        let bits = |rows: Vec<Vec<f32>>| -> Vec<Vec<u32>> {
            assert!(rows.iter().flatten().all(|v| v.is_finite()), "{shape:?}");
            rows.iter().map(|row| bits(row)).collect()
        };
        let together = bits(run(&mut bench, shape, 16, &sequences));
        for block_size in if shape.kv == KvFormat::F32 { vec![8, 32, 256] } else { vec![8] } {
            assert!(
                bits(run(&mut bench, shape, block_size, &sequences)) == together,
                "{shape:?} {block_size}"
            );
        }
        let mut first_row = 0;
        for (seed, sequence) in (1..).zip(&sequences) {
            let own = &together[first_row..first_row + sequence.asks.len()];
            first_row += sequence.asks.len();
            assert!(
                bits(run(&mut bench, shape, 16, std::slice::from_ref(sequence))) == own,
                "{shape:?} {:?}",
                sequence.asks
            );
            let end = sequence.asks.end;
            let decode = Sequence::new(shape, seed, end - 1..end);
            assert!(
                bits(run(&mut bench, shape, 8, &[decode])) == own[own.len() - 1..],
                "{shape:?} decode {end}"
            );
        }
        sequences.reverse();
        let mut reversed = bits(run(&mut bench, shape, 16, &sequences));
        let mut expected = Vec::new();
        for sequence in sequences.iter().rev() {
            expected.extend(reversed.split_off(reversed.len() - sequence.asks.len()));
        }
        assert!(expected == together, "{shape:?} in reverse");
    }
}

/// Whole numbers make logits exact, so that only the softmax is left to be judged; in 8 bits they do not.
#[test]
fn large_scores_stay_finite() {
    for shape in default_shapes().filter(|shape| shape.kv != KvFormat::Q8) {
        let mut bench = shape.bench();
        let mut sequences = mixed(shape);
        for row in sequences.iter_mut().flat_map(|s| s.q.iter_mut().chain(&mut s.k)) {
            row.iter_mut().for_each(|x| *x = (*x * 150.0).round());
        }
        check(&mut bench, shape, 16, &sequences);
        // All logits are the same: the lowest and the highest, and the mean of the values is the answer.
        for k in [-31.25, 31.25] {
            for sequence in &mut sequences {
                sequence.q.iter_mut().for_each(|row| row.fill(40.0));
                sequence.k.iter_mut().for_each(|row| row.fill(k));
            }
            check(&mut bench, shape, 16, &sequences);
        }
    }
}

/// Mesa 22.3.6 ends all loops of an invocation after 65,535 iterations, without a word.
#[test]
fn loops_stay_below_the_drivers_limit() {
    for kind in KINDS {
        let shape = Shape { num_kv_heads: 1, ..default_shape(kind) };
        for (head_vec4s, context) in [(16, 8192), (16, 29_696), (32, 17_024)] {
            for head_group in [1, 2, 3, 4, 7, 8] {
                // Four heads of 64 dimensions a workgroup cost more than the default model's three.
                let context = if head_vec4s == 16 && head_group % 4 == 0 { 8192 } else { context };
                let variant = Variant { head_vec4s, head_group, ..shape.variant(16) };
                assert!(variant.iterations(context) < 60_000, "{variant:?} at {context}");
            }
        }
        check(&mut shape.bench(), shape, 16, &[Sequence::new(shape, 1, 8191..8192)]);
    }
}
