//! Rotary embedding of q and k, and the cache's slots: each key and value in its place, everything else as it was.

use firstlight_shaders::kv_cache::{CacheShape, Placed, StoredWord};
use firstlight_shaders::matmul::{self, Store};
use firstlight_shaders::rope_kv_write::{NOWHERE, Params, Variant, cpu, turned_row};
use firstlight_shaders::weights::{GROUP_COLUMNS, PackedShape, UNIT, pack};
use firstlight_shaders::{Activations, Form, Home, KvFormat, WeightFormat, matmul_lanes};
use firstlight_tests::TestRng;

use super::{Bench, POISON, bits, check_close, floats, poison, stored_rows};

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

/// Rows of a batch, of which the last tile has one that is nobody's.
const ROWS: usize = 7;
/// The length of K.
const K: u32 = 64;

/// q, k and v as a product stores them, turned and written by the kernel of its own: what it holds of q, keys and values.
fn in_two_dispatches(bench: &mut Bench, rope: Variant, stored: &[u8], places: &[[u32; 4]]) -> [Vec<u32>; 3] {
    let width = ((rope.num_heads + 2 * rope.num_kv_heads) * rope.head_vec4s * 4) as usize;
    let product = lanes(Store::Set, 4);
    let contents = operands(product, stored, width, width, |column| column);
    let y = bytemuck::cast_slice(&poison(ROWS.next_multiple_of(4) * width)).to_vec();
    let all: Vec<&[u8]> = contents.iter().map(Vec::as_slice).chain([y.as_slice()]).collect();
    let program = product.program().expect("it composes");
    let qkv = bench.run(program, &all, product.workgroups(ROWS as u32, width as u32 / GROUP_COLUMNS));
    let [keys, values] = caches(rope);
    let written = bench.run_all(
        rope.program().expect("it composes"),
        &[
            bytemuck::bytes_of(&Params { pitch: width as u32 / 4 }),
            bytemuck::cast_slice(places),
            bytemuck::cast_slice(&angles(&frequencies(rope.head_vec4s as usize * 4), 0..90)),
            &qkv,
            &keys,
            &values,
        ],
        rope.workgroups(ROWS as u32),
    );
    let q_width = (rope.num_heads * rope.head_vec4s * 4) as usize;
    let words: Vec<Vec<u32>> = written.iter().map(|bytes| bytemuck::cast_slice(bytes).to_vec()).collect();
    let q = words[0].chunks(width).take(ROWS).flat_map(|row| row[..q_width].to_vec()).collect();
    [q, words[1].clone(), words[2].clone()]
}

/// The same by one product that turns them as it stores.
fn in_one_dispatch(
    bench: &mut Bench,
    rope: Variant,
    stored: &[u8],
    places: &[[u32; 4]],
    tile_rows: u32,
) -> [Vec<u32>; 3] {
    let head_dim = rope.head_vec4s * 4;
    let width = ((rope.num_heads + 2 * rope.num_kv_heads) * head_dim) as usize;
    let q_width = (rope.num_heads * head_dim) as usize;
    let product = lanes(Store::RopeKv(rope), tile_rows);
    let contents = operands(product, stored, width, q_width, |column| turned_row(column, head_dim));
    let all_rows = ROWS.next_multiple_of(tile_rows as usize);
    let mut all_places = places.to_vec();
    all_places.resize(all_rows, [0, 0, NOWHERE, 0]);
    let table = angles(&frequencies(head_dim as usize), 0..90);
    let y = poison(all_rows * q_width);
    let [keys, values] = caches(rope);
    let mut all: Vec<&[u8]> = contents.iter().map(Vec::as_slice).collect();
    all.extend([bytemuck::cast_slice(&y), bytemuck::cast_slice(&all_places), bytemuck::cast_slice(&table)]);
    all.extend([keys.as_slice(), values.as_slice()]);
    let program = product.program().expect("it composes");
    let written = bench.run_all(program, &all, product.workgroups(ROWS as u32, width as u32 / GROUP_COLUMNS));
    let words: Vec<Vec<u32>> = written.iter().map(|bytes| bytemuck::cast_slice(bytes).to_vec()).collect();
    let (q, beyond) = words[0].split_at(ROWS * q_width);
    assert!(is_poison(beyond), "a row that is nobody's is not written");
    [q.to_vec(), words[1].clone(), words[2].clone()]
}

fn lanes(store: Store, tile_rows: u32) -> matmul_lanes::Variant {
    matmul_lanes::Variant {
        format: WeightFormat::Q4_1,
        home: Home::Texture,
        x: Form { home: Home::Texture, activations: Activations::F32 },
        written: Form::PLAIN,
        norm_width: 0,
        store,
        bias: true,
        units: K / UNIT,
        tile_rows,
        subgroups: true,
        quads: false,
    }
}

/// What `product` reads: of `width` columns, each from where `row` says, into rows of `y_pitch` numbers.
fn operands(
    product: matmul_lanes::Variant,
    stored: &[u8],
    width: usize,
    y_pitch: usize,
    row: impl Fn(u32) -> u32,
) -> Vec<Vec<u8>> {
    let row_bytes = product.format.row_bytes(K);
    let shape = PackedShape::new(product.format, width as u32, K);
    let (data, scales) =
        pack(shape, K, |column| stored.get(row(column) as usize * row_bytes..)?.get(..row_bytes));
    let params = matmul::Params {
        x_pitch: K / 4,
        y_pitch: y_pitch as u32,
        y_column: 0,
        num_groups: shape.groups,
        z_pitch: 0,
        eps: 0.0,
    };
    let x = floats(&mut TestRng::new(7), ROWS.next_multiple_of(4) * K as usize);
    let bias: Vec<f32> = (0..width as u32).map(|column| (row(column) % 17) as f32 * 0.25 - 2.0).collect();
    vec![
        bytemuck::bytes_of(&params).to_vec(),
        bytemuck::cast_slice(&x).to_vec(),
        data,
        scales,
        bytemuck::cast_slice(&bias).to_vec(),
    ]
}

fn caches(rope: Variant) -> [Vec<u8>; 2] {
    let head_dim = rope.head_vec4s * 4;
    let cache = CacheShape { format: rope.kv, head_dim, block_size: rope.block_size };
    let rows = BLOCKS * rope.num_kv_heads as usize;
    [cache.key_words(rows), cache.value_words(rows)]
        .map(|words| bytemuck::cast_slice(&poison(words)).to_vec())
}

#[test]
fn a_product_that_turns_as_it_stores_gives_the_same_bits() {
    let mut bench = Bench::new();
    for (num_heads, num_kv_heads, head_dim, kv, work_home) in [
        (3, 1, 64, KvFormat::F16, Home::Texture),
        (4, 2, 32, KvFormat::F32, Home::Texture),
        (2, 1, 128, KvFormat::F16, Home::Buffer),
    ] {
        let rope =
            Variant { num_heads, num_kv_heads, head_vec4s: head_dim / 4, block_size: 16, work_home, kv };
        assert!(rope.fits_a_product());
        let width = (num_heads + 2 * num_kv_heads) * head_dim;
        let stored = stored_rows(WeightFormat::Q4_1, width, K, &mut TestRng::new(u64::from(width)));
        // Blocks in no order, slots at their edges.
        let slots = [95, 0, 33, 16, 31, 47, 48];
        let places: Vec<[u32; 4]> = (0..).zip(slots).map(|(row, slot)| [9, row * 13, slot, 0]).collect();
        let expected = in_two_dispatches(&mut bench, rope, &stored, &places);
        assert!(expected.iter().all(|words| words.iter().any(|&word| word != POISON)), "{rope:?}");
        for tile_rows in [1, 2, 4] {
            let got = in_one_dispatch(&mut bench, rope, &stored, &places, tile_rows);
            assert!(got == expected, "{rope:?}, {tile_rows} rows a thread");
        }
    }
    for (head_dim, kv) in [(24, KvFormat::F16), (80, KvFormat::F32), (64, KvFormat::Q8)] {
        let rope = Variant {
            num_heads: 1,
            num_kv_heads: 1,
            head_vec4s: head_dim / 4,
            block_size: 16,
            work_home: Home::Texture,
            kv,
        };
        assert!(!rope.fits_a_product(), "{rope:?}");
    }
}
