//! Rotary embedding of q and k, and the cache's slots: each key and value in its place, everything else as it was.

use firstlight_shaders::Home;
use firstlight_shaders::rope_kv_write::{Params, Variant, cpu};
use firstlight_tests::TestRng;

use super::{Bench, POISON, bits, check_close, floats, is_untouched, poison};

struct Shape {
    num_heads: usize,
    num_kv_heads: usize,
    head_dim: usize,
    block_size: usize,
}

const BLOCKS: usize = 6;

/// Radians a position of each pair of dimensions.
fn frequencies(head_dim: usize) -> Vec<f64> {
    (0..head_dim / 2).map(|i| 10_000f64.powf(-2.0 * i as f64 / head_dim as f64)).collect()
}

/// The table's rows of `positions`; all others are no numbers.
fn angles(frequencies: &[f64], positions: impl Iterator<Item = usize> + Clone) -> Vec<f32> {
    let pitch = frequencies.len() * 2;
    let mut table = vec![f32::NAN; (positions.clone().max().unwrap_or(0) + 1) * pitch];
    for position in positions {
        let (cosines, sines) = table[position * pitch..][..pitch].split_at_mut(pitch / 2);
        for (i, frequency) in frequencies.iter().enumerate() {
            let angle = position as f64 * frequency;
            (cosines[i], sines[i]) = (angle.cos() as f32, angle.sin() as f32);
        }
    }
    table
}

/// Rows of (position, slot), one after the other.
fn check(bench: &mut Bench, shape: &Shape, rows: &[(usize, usize)]) {
    [Home::Buffer, Home::Texture].into_iter().for_each(|home| check_at(bench, home, shape, rows));
}

fn check_at(bench: &mut Bench, work_home: Home, shape: &Shape, rows: &[(usize, usize)]) {
    let &Shape { num_heads, num_kv_heads, head_dim, block_size } = shape;
    let what = format!(
        "{num_heads}/{num_kv_heads} heads of {head_dim}, blocks of {block_size} in a {}",
        work_home.name()
    );
    let heads = num_heads + 2 * num_kv_heads;
    let pitch = heads * head_dim + 4;
    let mut random = TestRng::new(heads as u64);
    let mut qkv = poison(rows.len() * pitch);
    for row in qkv.chunks_mut(pitch) {
        row[..heads * head_dim].copy_from_slice(&floats(&mut random, heads * head_dim));
    }
    let params = Params { pitch: pitch as u32 / 4 };
    let variant = Variant {
        num_heads: num_heads as u32,
        num_kv_heads: num_kv_heads as u32,
        head_vec4s: head_dim as u32 / 4,
        block_size: block_size as u32,
        work_home,
    };
    let frequencies = frequencies(head_dim);
    let places: Vec<_> = rows.iter().map(|&(p, slot)| [u32::MAX, p as u32, slot as u32, u32::MAX]).collect();
    let cache = poison(BLOCKS * block_size * num_kv_heads * head_dim);
    let written = bench.run_all(
        variant.program().expect("it composes"),
        &[
            bytemuck::bytes_of(&params),
            bytemuck::cast_slice(&places),
            bytemuck::cast_slice(&angles(&frequencies, rows.iter().map(|&(position, _)| position))),
            bytemuck::cast_slice(&qkv),
            bytemuck::cast_slice(&cache),
            bytemuck::cast_slice(&cache),
        ],
        variant.workgroups(rows.len() as u32),
    );
    let [turned, keys, values] = written.as_slice() else { panic!("three bindings are written") };
    let turned: &[f32] = bytemuck::cast_slice(turned);
    let mut keys: Vec<f32> = bytemuck::cast_slice(keys).to_vec();
    let mut values: Vec<f32> = bytemuck::cast_slice(values).to_vec();
    for ((&(position, slot), before), after) in rows.iter().zip(qkv.chunks(pitch)).zip(turned.chunks(pitch)) {
        let q_width = num_heads * head_dim;
        assert_eq!(bits(&after[q_width..]), bits(&before[q_width..]), "{what}: only q turns in place");
        for head in 0..num_heads + num_kv_heads {
            let own = head * head_dim..(head + 1) * head_dim;
            let expected = cpu(&before[own.clone()], position as u32, &frequencies);
            let got = match head.checked_sub(num_heads) {
                None => after[own].to_vec(),
                Some(head) => take(&mut keys, head_dim, |d| key_at(shape, slot, head, d)),
            };
            check_close(&format!("{what}, head {head} at {position}"), &got, &expected);
        }
        for head in 0..num_kv_heads {
            let got = take(&mut values, head_dim, |d| value_at(shape, slot, head, d));
            let own = (num_heads + num_kv_heads + head) * head_dim;
            assert_eq!(bits(&got), bits(&before[own..own + head_dim]), "{what}: values are copied");
        }
    }
    assert!(is_untouched(&keys) && is_untouched(&values), "{what}: no other slot is written");
}

/// Takes `count` numbers out of `from` and leaves poison.
fn take(from: &mut [f32], count: usize, at: impl Fn(usize) -> usize) -> Vec<f32> {
    (0..count).map(|d| std::mem::replace(&mut from[at(d)], f32::from_bits(POISON))).collect()
}

/// Where dimension d of a key lies: `[block][kv head][head_vec4s][block_size]` vec4s.
fn key_at(shape: &Shape, slot: usize, head: usize, d: usize) -> usize {
    let (block, slot) = (slot / shape.block_size, slot % shape.block_size);
    let vec4 = (block * shape.num_kv_heads + head) * shape.head_dim / 4 + d / 4;
    (vec4 * shape.block_size + slot) * 4 + d % 4
}

/// Where dimension d of a value lies: `[block][kv head][block_size][head_vec4s]` vec4s.
fn value_at(shape: &Shape, slot: usize, head: usize, d: usize) -> usize {
    let (block, slot) = (slot / shape.block_size, slot % shape.block_size);
    ((block * shape.num_kv_heads + head) * shape.block_size + slot) * shape.head_dim + d
}

#[test]
fn q_turns_and_the_cache_is_filled() {
    let mut bench = Bench::with_default_limits();
    for (num_heads, num_kv_heads, head_dim, block_size) in
        [(9, 3, 64, 16), (1, 1, 8, 8), (4, 1, 24, 32), (7, 1, 40, 16), (2, 2, 80, 8), (8, 2, 128, 16)]
    {
        let shape = Shape { num_heads, num_kv_heads, head_dim, block_size };
        let last = BLOCKS * block_size - 1;
        check(&mut bench, &shape, &[(1, block_size)]);
        // Blocks in no order, slots at their edges.
        check(
            &mut bench,
            &shape,
            &[
                (0, last),
                (8191, 0),
                (1, 2 * block_size),
                (2, 2 * block_size - 1),
                (block_size, 3 * block_size + 5),
                (1, block_size - 1),
            ],
        );
    }
}
