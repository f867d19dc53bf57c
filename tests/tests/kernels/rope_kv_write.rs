//! Rotary embedding of q and k, and the cache's slots: each key and value in its place, everything else as it was.

use firstlight_shaders::kv_cache::{CacheShape, Placed, StoredWord};
use firstlight_shaders::rope_kv_write::{Params, Variant, cpu};
use firstlight_shaders::{Home, KvFormat};
use firstlight_tests::TestRng;

use super::{Bench, POISON, bits, check_close, floats, poison};

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
    for kv in KvFormat::ALL {
        [Home::Buffer, Home::Texture].into_iter().for_each(|home| check_at(bench, home, kv, shape, rows));
    }
}

fn check_at(bench: &mut Bench, work_home: Home, kv: KvFormat, shape: &Shape, rows: &[(usize, usize)]) {
    let &Shape { num_heads, num_kv_heads, head_dim, block_size } = shape;
    let what = format!(
        "{num_heads}/{num_kv_heads} heads of {head_dim}, blocks of {block_size} in a {} of {}",
        work_home.name(),
        kv.name()
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
        kv,
    };
    let frequencies = frequencies(head_dim);
    let places: Vec<_> = rows.iter().map(|&(p, slot)| [u32::MAX, p as u32, slot as u32, u32::MAX]).collect();
    let cache = CacheShape { format: kv, head_dim: head_dim as u32, block_size: block_size as u32 };
    let cache_rows = BLOCKS * num_kv_heads;
    let written = bench.run_all(
        variant.program().expect("it composes"),
        &[
            bytemuck::bytes_of(&params),
            bytemuck::cast_slice(&places),
            bytemuck::cast_slice(&angles(&frequencies, rows.iter().map(|&(position, _)| position))),
            bytemuck::cast_slice(&qkv),
            bytemuck::cast_slice(&poison(cache.key_words(cache_rows))),
            bytemuck::cast_slice(&poison(cache.value_words(cache_rows))),
        ],
        variant.workgroups(rows.len() as u32),
    );
    let [turned, keys, values] = written.as_slice() else { panic!("three bindings are written") };
    let turned: &[f32] = bytemuck::cast_slice(turned);
    let mut keys: Vec<u32> = bytemuck::cast_slice(keys).to_vec();
    let mut values: Vec<u32> = bytemuck::cast_slice(values).to_vec();
    for ((&(position, slot), before), after) in rows.iter().zip(qkv.chunks(pitch)).zip(turned.chunks(pitch)) {
        let q_width = num_heads * head_dim;
        assert_eq!(bits(&after[q_width..]), bits(&before[q_width..]), "{what}: only q turns in place");
        let turned = |head: usize| cpu(&before[head * head_dim..][..head_dim], position as u32, &frequencies);
        for head in 0..num_heads {
            let got = &after[head * head_dim..][..head_dim];
            check_close(&format!("{what}, head {head} at {position}"), got, &turned(head));
        }
        for head in 0..num_kv_heads {
            let key: Vec<f32> = turned(num_heads + head).iter().map(|&x| x as f32).collect();
            let value = &before[(num_heads + num_kv_heads + head) * head_dim..][..head_dim];
            let row = slot / block_size * num_kv_heads + head;
            let (key, value) = cache.put(row, slot % block_size, &key, value);
            take(&what, &mut keys, key);
            // Values are copied, and so is what rounding makes of them.
            let is_exact = |word: &StoredWord| !matches!(word, StoredWord::Bytes(_));
            let copied = value.iter().filter(|(_, word)| is_exact(word));
            copied.for_each(|&(at, word)| {
                assert_eq!(values[at], word.bits(), "{what}: word {at} of the values")
            });
            take(&what, &mut values, value);
        }
    }
    assert!(is_poison(&keys) && is_poison(&values), "{what}: no other slot is written");
}

/// Holds words of a cache to what they should be, and leaves poison.
fn take(what: &str, from: &mut [u32], placed: Placed) {
    for (at, word) in placed {
        let got = std::mem::replace(&mut from[at], POISON);
        assert!(word.allows(got), "{what}: word {at} is {got:#x}, not {word:x?}");
    }
}

fn is_poison(words: &[u32]) -> bool {
    words.iter().all(|&word| word == POISON)
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
