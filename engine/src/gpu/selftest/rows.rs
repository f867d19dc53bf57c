//! Made-up activations for the kernels between the matrices: norm, rope, attention, activation, sampling.
//!
//! Invariant: sizes that a pipeline is specialised by are the model's own; all others are small.

use firstlight_shaders::kv_cache::{CacheShape, Placed};
use firstlight_shaders::matmul::squares_pitch;
use firstlight_shaders::paged_attention::{self, WHOLE_HEAD};
use firstlight_shaders::sample::{self, Choice};
use firstlight_shaders::weights::{BLOCK, UNIT};
use firstlight_shaders::{
    Activations, ComposeError, Form, Home, norm_parts, quantise, rms_norm, rope_kv_write, silu_mul,
};

use super::{Case, Numbers, POISON, Shapes, Word, bytes_of, numbers, padded, rows_as};
use crate::gpu::KernelChoice;

/// Where and how a kernel of `choice` writes what products read, `run` numbers at a time.
fn written_as(run: u32, choice: KernelChoice) -> (Home, Activations) {
    match choice.activations {
        Activations::I8 if !(choice.subgroups && run.is_multiple_of(WHOLE_HEAD)) => {
            (Home::Buffer, Activations::F32)
        }
        activations => (choice.work_home, activations),
    }
}

/// The norm of three rows, or of two that are gathered from them.
pub fn norm(shapes: &Shapes, gather: bool, choice: KernelChoice) -> Result<Case, ComposeError> {
    let mut random = Numbers(11);
    let width = shapes.hidden_size;
    let x = random.floats(3 * width);
    let gamma = random.floats(width);
    let params = rms_norm::Params { x_pitch: width / 4, y_pitch: width / 4, eps: 1e-5 };
    let normed = rms_norm::cpu(&x, &gamma, params.eps);
    let sources: &[u32] = if gather { &[2, 0] } else { &[0, 1, 2] };
    let row = |&source: &u32| normed[(source * width) as usize..][..width as usize].to_vec();
    let words = numbers(sources.iter().flat_map(row).collect());
    let contents = vec![
        bytes_of(&[params]),
        bytes_of(&x),
        bytes_of(&gamma),
        bytes_of(sources),
        bytes_of(&vec![POISON; words.len()]),
    ];
    let program = rms_norm::program(width / 4, gather, choice.work_home, choice.subgroups)?;
    let grid = rms_norm::workgroups(sources.len() as u32);
    Ok(Case { program, contents, grid, wanted: vec![(4, words)] })
}

/// The half of a norm that comes before a product, of three rows.
pub fn norm_parts(shapes: &Shapes, choice: KernelChoice) -> Result<Case, ComposeError> {
    let mut random = Numbers(31);
    let width = shapes.hidden_size;
    let pitch = width.next_multiple_of(UNIT);
    let (x, gamma) = (random.floats(3 * width), random.floats(width));
    let (scaled, sums) = norm_parts::cpu(&x, &gamma);
    let y = Form { home: choice.work_home, activations: choice.activations };
    let blocks = width.div_ceil(BLOCK) as usize;
    let whole: Vec<f32> = x.chunks(width as usize).flat_map(|row| padded(row.to_vec(), pitch, 0.0)).collect();
    let squares: Vec<_> = sums
        .chunks(blocks)
        .flat_map(|row| padded(numbers(row.to_vec()), squares_pitch(width), Word::Kept))
        .collect();
    let written: Vec<_> = scaled
        .chunks(width as usize)
        .flat_map(|row| {
            padded(rows_as(y.activations, width, row), 4 * y.activations.row_texels(width), Word::Any)
        })
        .collect();
    let params = norm_parts::Params { x_pitch: pitch / 4, y_pitch: y.activations.row_texels(width) };
    let contents = vec![
        bytes_of(&[params]),
        bytes_of(&whole),
        bytes_of(&gamma),
        bytes_of(&vec![POISON; squares.len()]),
        bytes_of(&vec![POISON; written.len()]),
    ];
    let program = norm_parts::program(width, y)?;
    Ok(Case { program, contents, grid: norm_parts::workgroups(3), wanted: vec![(3, squares), (4, written)] })
}

/// Two heads' worth of cache: enough for a wrong stride to show.
const KV_HEADS: u32 = 2;

/// Radians a position of each pair of dimensions of a made-up head, and the table of the first `positions` positions.
pub fn made_up_angles(head_dim: u32, positions: u32) -> (Vec<f64>, Vec<f32>) {
    let frequencies: Vec<f64> =
        (0..head_dim / 2).map(|i| 10_000f64.powf(-f64::from(2 * i) / f64::from(head_dim))).collect();
    let turns = |position: u32| frequencies.iter().map(move |f| f * f64::from(position));
    let angles = (0..positions)
        .flat_map(|p| turns(p).map(f64::cos).chain(turns(p).map(f64::sin)))
        .map(|angle| angle as f32)
        .collect();
    (frequencies, angles)
}

/// Three rows turned and written into two blocks of a cache.
pub fn rope(shapes: &Shapes, choice: KernelChoice) -> Result<Case, ComposeError> {
    let mut random = Numbers(13);
    let (head_dim, block_size) = (shapes.head_dim, shapes.block_size);
    let num_heads = KV_HEADS * (shapes.num_heads / shapes.num_kv_heads);
    let width = (num_heads + 2 * KV_HEADS) * head_dim;
    let places = [[0, 0, 3, 0], [0, 1, block_size + 1, 0], [0, 5, 0, 0u32]];
    let qkv = random.floats(3 * width);
    let (frequencies, angles) = made_up_angles(head_dim, 6);
    let cache = CacheShape { format: choice.kv, head_dim, block_size };
    let cache_rows = 2 * KV_HEADS as usize;
    let mut keys = vec![Word::Kept; cache.key_words(cache_rows)];
    let mut values = vec![Word::Kept; cache.value_words(cache_rows)];
    let mut turned = vec![Word::Kept; qkv.len()];
    for (row, [_, position, slot, _]) in (0..).zip(places) {
        let head = |head: u32| {
            let start = (row * width + head * head_dim) as usize;
            (start, &qkv[start..start + head_dim as usize])
        };
        for h in 0..num_heads {
            let (start, q) = head(h);
            let q = rope_kv_write::cpu(q, position, &frequencies);
            turned.splice(start..start + q.len(), numbers(q));
        }
        for h in 0..KV_HEADS {
            let k = rope_kv_write::cpu(head(num_heads + h).1, position, &frequencies);
            let v = head(num_heads + KV_HEADS + h).1;
            let k: Vec<f32> = k.iter().map(|&x| x as f32).collect();
            let at = (slot / block_size * KV_HEADS + h) as usize;
            let (key, value) = cache.put(at, (slot % block_size) as usize, &k, v);
            key.into_iter().for_each(|(at, word)| keys[at] = word.into());
            value.into_iter().for_each(|(at, word)| values[at] = word.into());
        }
    }
    let params = rope_kv_write::Params { pitch: width / 4 };
    let head_vec4s = head_dim / 4;
    let KernelChoice { work_home, kv, .. } = choice;
    let variant =
        rope_kv_write::Variant { num_heads, num_kv_heads: KV_HEADS, head_vec4s, block_size, work_home, kv };
    let contents = vec![
        bytes_of(&[params]),
        bytes_of(&places),
        bytes_of(&angles),
        bytes_of(&qkv),
        bytes_of(&vec![POISON; keys.len()]),
        bytes_of(&vec![POISON; values.len()]),
    ];
    let wanted = vec![(3, turned), (4, keys), (5, values)];
    Ok(Case { program: variant.program()?, contents, grid: variant.workgroups(3), wanted })
}

/// Three rows of two sequences, one of them longer than any kernel takes in one turn.
pub fn attention(shapes: &Shapes, choice: KernelChoice) -> Result<Case, ComposeError> {
    let mut random = Numbers(17);
    let (head_dim, block_size) = (shapes.head_dim, shapes.block_size);
    let head_group = shapes.num_heads / shapes.num_kv_heads;
    let num_heads = KV_HEADS * head_group;
    let width = num_heads * head_dim;
    let table_pitch = 71u32.div_ceil(block_size);
    let num_blocks = 2 * table_pitch;
    // The first sequence's blocks run backwards from the end, the second one's from the start.
    let tables: Vec<u32> = (0..table_pitch).map(|j| num_blocks - 1 - j).chain(0..table_pitch).collect();
    let places = [[0, 70, 0, 0], [0, 9, 0, 1], [0, 0, 0, 1u32]];
    let q = random.floats(3 * width);
    let cache = CacheShape { format: choice.kv, head_dim, block_size };
    // Keys and values of `[block][slot][head]`, each one a head.
    let heads = num_blocks * block_size * KV_HEADS;
    let mut head_of = || -> Vec<Vec<f32>> { (0..heads).map(|_| random.floats(head_dim)).collect() };
    let (keys, values) = (head_of(), head_of());
    let cache_rows = (num_blocks * KV_HEADS) as usize;
    let mut key_words = vec![0u32; cache.key_words(cache_rows)];
    let mut value_words = vec![0u32; cache.value_words(cache_rows)];
    for (at, (key, value)) in (0u32..).zip(keys.iter().zip(&values)) {
        let (place, head) = (at / KV_HEADS, at % KV_HEADS);
        let row = (place / block_size * KV_HEADS + head) as usize;
        let (key, value) = cache.put(row, (place % block_size) as usize, key, value);
        let fill = |words: &mut [u32], placed: Placed| {
            placed.into_iter().for_each(|(at, word)| words[at] = word.bits());
        };
        fill(&mut key_words, key);
        fill(&mut value_words, value);
    }
    let scale = 1.0 / f64::from(head_dim).sqrt();
    let mut mixed = Vec::new();
    for (row, [_, position, _, sequence]) in (0..).zip(places) {
        for head in 0..num_heads {
            let gather = |from: &[Vec<f32>]| -> Vec<Vec<f32>> {
                let place = |p: u32| {
                    let block = tables[(sequence * table_pitch + p / block_size) as usize];
                    ((block * block_size + p % block_size) * KV_HEADS + head / head_group) as usize
                };
                (0..=position).map(|p| cache.rounded(&from[place(p)])).collect()
            };
            let (k, v) = (gather(&keys), gather(&values));
            let k: Vec<&[f32]> = k.iter().map(Vec::as_slice).collect();
            let v: Vec<&[f32]> = v.iter().map(Vec::as_slice).collect();
            let start = (row * width + head * head_dim) as usize;
            mixed.extend(paged_attention::cpu(&q[start..start + head_dim as usize], &k, &v, scale));
        }
    }
    let (y_home, activations) = written_as(head_dim, choice);
    let words = rows_as(activations, width, &mixed);
    let params = paged_attention::Params {
        q_pitch: width / 4,
        y_pitch: words.len() as u32 / 12,
        num_kv_heads: KV_HEADS,
        head_group,
        table_pitch,
        scale: scale as f32,
    };
    let contents = vec![
        bytes_of(&[params]),
        bytes_of(&places),
        bytes_of(&tables),
        bytes_of(&q),
        bytes_of(&key_words),
        bytes_of(&value_words),
        bytes_of(&vec![POISON; words.len()]),
    ];
    let KernelChoice { work_home, subgroups, kv, .. } = choice;
    let head_vec4s = head_dim / 4;
    let variant = paged_attention::Variant {
        head_vec4s,
        head_group,
        block_size,
        work_home,
        kv,
        y_home,
        activations,
        subgroups,
        few_threads: choice.few_threads(),
        teams: choice.attention_teams(),
    };
    let grid = variant.workgroups(num_heads, 3);
    Ok(Case { program: variant.program()?, contents, grid, wanted: vec![(6, words)] })
}

/// Three rows in 8 bits, the second one of zeros, the third one with a block of them.
pub fn quantised(choice: KernelChoice) -> Result<Case, ComposeError> {
    let width = 192;
    let mut x = Numbers(29).floats(3 * width);
    x[width as usize..][..width as usize + 16].fill(0.0);
    let units = width / 64;
    let rows: Vec<f64> = x.iter().map(|&value| f64::from(value)).collect();
    let words = rows_as(Activations::I8, width, &rows);
    let params = quantise::Params { x_pitch: width / 4, y_pitch: words.len() as u32 / 12 };
    let contents = vec![bytes_of(&[params]), bytes_of(&x), bytes_of(&vec![POISON; words.len()])];
    let program = quantise::program(units, choice.work_home)?;
    Ok(Case { program, contents, grid: quantise::workgroups(units, 3), wanted: vec![(2, words)] })
}

/// Two rows of gate and up.
pub fn silu() -> Result<Case, ComposeError> {
    let mut random = Numbers(19);
    let width = 72;
    let (gates, ups) = (random.floats(2 * width), random.floats(2 * width));
    let rows = gates.chunks(width as usize).zip(ups.chunks(width as usize));
    let x: Vec<f32> = rows.flat_map(|(gate, up)| [gate, up].concat()).collect();
    let params = silu_mul::Params {
        x_pitch: width / 2,
        up_vec4: width / 4,
        y_pitch: width / 4,
        width_vec4s: width / 4,
    };
    let words = numbers(silu_mul::cpu(&gates, &ups));
    let contents = vec![bytes_of(&[params]), bytes_of(&x), bytes_of(&vec![POISON; words.len()])];
    let grid = silu_mul::workgroups(&params, 2);
    Ok(Case { program: silu_mul::program()?, contents, grid, wanted: vec![(2, words)] })
}

/// A token that small errors of exponentials and logarithms cannot change: `None` where the runner-up is close.
fn clear_token(logits: &[f32], choice: &Choice) -> Option<u32> {
    let token = sample::cpu(logits, choice);
    let mut lowered = logits.to_vec();
    lowered[token as usize] -= 0.01;
    let near = [choice.top_p * 0.99, choice.top_p * 1.01].map(|top_p| {
        // 1 and more is off, which is no neighbour of what is below it.
        let top_p = if choice.top_p < 1.0 { top_p.min(0.999) } else { choice.top_p };
        sample::cpu(logits, &Choice { top_p, ..*choice })
    });
    let clear = sample::cpu(&lowered, choice) == token && near == [token; 2];
    clear.then_some(token)
}

/// Rows under every filter, greedy ones among them.
pub fn sampling() -> Result<Case, ComposeError> {
    const VOCAB: u32 = 300;
    let mut random = Numbers(23);
    let plain = Choice { temperature: 1.0, top_k: 0, top_p: 1.0, min_p: 0.0, seed: 0x5eed, position: 0 };
    let filters = [
        Choice { temperature: 0.0, ..plain },
        plain,
        Choice { top_k: 20, ..plain },
        Choice { top_p: 0.9, ..plain },
        Choice { min_p: 0.05, temperature: 0.7, ..plain },
        Choice { top_k: 50, top_p: 0.8, ..plain },
    ];
    let (mut logits, mut rows, mut words) = (Vec::new(), Vec::new(), Vec::new());
    for (position, filter) in (0..).zip(filters.iter().cycle().take(48)) {
        let choice = Choice { position, ..*filter };
        let row: Vec<f32> = random.floats(VOCAB).into_iter().map(|x| 6.0 * x).collect();
        if let Some(token) = clear_token(&row, &choice) {
            logits.extend(row);
            rows.push(sample::Row::from(&choice));
            words.push(Word::Token(token));
        }
    }
    let params = sample::Params { vocab: VOCAB, pitch: VOCAB };
    let grid = sample::workgroups(rows.len() as u32);
    let contents =
        vec![bytes_of(&[params]), bytes_of(&logits), bytes_of(&rows), bytes_of(&vec![u32::MAX; rows.len()])];
    Ok(Case { program: sample::program()?, contents, grid, wanted: vec![(3, words)] })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn most_sampled_rows_are_clear() {
        let case = sampling().expect("it composes");
        assert!(case.wanted[0].1.len() >= 24, "{} rows", case.wanted[0].1.len());
    }
}
