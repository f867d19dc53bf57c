//! The self-test: it passes on this adapter with every choice of kernels, and finds every kernel that is made wrong. The
//! doctor's own kernels against their twins.

use firstlight_engine::gpu::{
    DeviceOptions, KernelCache, KernelChoice, MAX_F16_NMSE, MAX_NMSE, MatmulFamily, MatmulShape, Probe,
    SampleOn, Shapes, cases, measure, refuse_wrong, self_test,
};
use firstlight_shaders::matmul::Store;
use firstlight_shaders::matmul_tiled::Arithmetic;
use firstlight_shaders::{Activations, Form, Home, KvFormat, WeightFormat, peak, rope_kv_write, stream};
use firstlight_tests::gpu::{block_on, open};
use firstlight_tests::reference::nmse;

use super::SPLIT;

const LANES: KernelChoice = KernelChoice {
    matmul: MatmulFamily::Lanes,
    home: Home::Texture,
    work_home: Home::Texture,
    subgroups: true,
    quads: false,
    sample_on: SampleOn::Cpu,
    activations: Activations::F32,
    tile_arithmetic: Arithmetic::F32,
    kv: KvFormat::F32,
};

/// The kernels of GPUs with four columns a thread, and the same with tiles in half precision.
const QUADS: KernelChoice = KernelChoice { matmul: MatmulFamily::Quads { lanes: 0 }, ..SPLIT };
const QUADS_F16: KernelChoice = KernelChoice { tile_arithmetic: Arithmetic::F16, ..QUADS };

/// With activations in 8 bits.
const PAIRS: KernelChoice = KernelChoice { activations: Activations::I8, ..LANES };

/// A small model's sizes: few turns of each loop.
fn shapes(format: WeightFormat) -> Shapes {
    let (x, written) = (Form::PLAIN, Form::PLAIN);
    let product = |store, bias| MatmulShape { format, store, bias, units: 2, x, written, norm_width: 0 };
    Shapes {
        hidden_size: 72,
        num_heads: 6,
        num_kv_heads: 2,
        head_dim: 24,
        block_size: 8,
        embeddings: vec![format],
        products: vec![product(Store::Set, true), product(Store::Add, false), product(Store::Silu, false)],
    }
}

/// The products of `shapes`, each with half of a norm; what they write for others is in `form`.
fn beside_norms(shapes: &Shapes, form: Form) -> Vec<MatmulShape> {
    let half = |product: &MatmulShape| MatmulShape {
        store: if product.store == Store::Add { Store::AddNorm } else { product.store },
        written: form,
        norm_width: shapes.hidden_size,
        ..*product
    };
    shapes.products.iter().map(half).collect()
}

/// Sizes at which lanes write whole blocks of 8-bit numbers, and products of them, longer than four units of K.
fn pair_shapes(format: WeightFormat, choice: KernelChoice) -> Shapes {
    let mut shapes = Shapes { hidden_size: 160, num_heads: 4, head_dim: 64, ..shapes(format) };
    let form = Form { home: choice.work_home, activations: Activations::I8 };
    for product in &mut shapes.products {
        *product = MatmulShape { units: 5, x: form, ..*product };
    }
    if choice.fuses_norms() {
        shapes.products = beside_norms(&shapes, form);
    }
    shapes
}

#[test]
fn activations_in_8_bits_pass() {
    let device = open(DeviceOptions::default());
    let mut cache = KernelCache::default();
    let plain = KernelChoice { work_home: Home::Buffer, subgroups: false, ..PAIRS };
    for (choice, format) in [(PAIRS, WeightFormat::Q4_1), (plain, WeightFormat::Q4_0)] {
        let shapes = pair_shapes(format, choice);
        let checked = block_on(&device, self_test(&device, &mut cache, choice, &shapes));
        let checked = checked.expect("every kernel is right");
        assert_eq!(checked.len(), 3 * 3 + 7, "{choice}");
        let worst = checked.iter().max_by(|a, b| a.nmse.total_cmp(&b.nmse)).expect("some kernels");
        assert!(worst.nmse < 1e-10, "{choice}: {worst:?}");
    }
}

#[test]
fn every_choice_passes_on_this_adapter() {
    let device = open(DeviceOptions::default());
    let mut cache = KernelCache::default();
    for (choice, format, kernels) in [
        (LANES, WeightFormat::Q4_1, 3 * 3 + 6),
        (
            KernelChoice { home: Home::Buffer, work_home: Home::Buffer, subgroups: false, ..LANES },
            WeightFormat::F16,
            3 * 3 + 6,
        ),
        (SPLIT, WeightFormat::Q8_0, 5 + 7),
        (QUADS, WeightFormat::Q4_1, 5 + 7),
    ] {
        let mut shapes = shapes(format);
        if choice.sample_on == SampleOn::Gpu {
            // Large tiles take this driver's compiler a while: one product.
            shapes.products.truncate(1);
        }
        if choice.fuses_norms() {
            shapes.products =
                beside_norms(&shapes, Form { home: Home::Texture, activations: Activations::F32 });
        }
        let checked = block_on(&device, self_test(&device, &mut cache, choice, &shapes));
        let checked = checked.expect("every kernel is right");
        assert_eq!(checked.len(), kernels, "{choice}");
        let worst = checked.iter().max_by(|a, b| a.nmse.total_cmp(&b.nmse)).expect("some kernels");
        assert!(worst.nmse < 1e-11, "{choice}: {worst:?}");
    }
}

#[test]
fn tiles_in_half_precision_pass_within_their_own_bound() {
    let device = open(DeviceOptions::default());
    let mut shapes = shapes(WeightFormat::Q4_0);
    shapes.products.truncate(1);
    let checked = block_on(&device, self_test(&device, &mut KernelCache::default(), QUADS_F16, &shapes));
    for one in checked.expect("every kernel is right") {
        let bound = if one.kernel.starts_with("matmul_tiled_f16") { MAX_F16_NMSE } else { MAX_NMSE };
        assert!(one.max_nmse == bound && one.nmse < bound / 3.0, "{one:?}");
    }
}

#[test]
fn every_format_passes() {
    let device = open(DeviceOptions::default());
    let shapes = Shapes {
        products: WeightFormat::ALL
            .map(|format| MatmulShape {
                format,
                store: Store::Set,
                bias: false,
                units: 1,
                x: Form::PLAIN,
                written: Form::PLAIN,
                norm_width: 0,
            })
            .to_vec(),
        embeddings: WeightFormat::ALL.to_vec(),
        ..shapes(WeightFormat::F32)
    };
    let mut cases = cases(LANES, &shapes).expect("the kernels compose");
    // A product for each tile, and the embedding; what follows knows no formats.
    cases.truncate(WeightFormat::ALL.len() * (LANES.matmul_tiles().len() + 1));
    let checked = block_on(&device, measure(&device, &mut KernelCache::default(), &cases));
    for one in checked.expect("the kernels run") {
        assert!(one.nmse < 1e-12, "{one:?}");
    }
}

/// Changes `from` into `to` in a kernel of this name and sees that it is found and named.
fn check_found(choice: KernelChoice, name: &str, from: &str, to: &str) {
    check_found_of(choice, &shapes(WeightFormat::Q4_1), name, from, to);
}

/// The same for a model of these shapes.
fn check_found_of(choice: KernelChoice, shapes: &Shapes, name: &str, from: &str, to: &str) {
    let device = open(DeviceOptions::default());
    let all = cases(choice, shapes).expect("the kernels compose");
    let found = all.into_iter().find(|case| case.program.name.contains(name));
    let mut some = [found.unwrap_or_else(|| panic!("no kernel is named {name}"))];
    assert!(some[0].program.wgsl.contains(from), "{name} has no {from:?}");
    some[0].program.wgsl = some[0].program.wgsl.replace(from, to);
    let checked = block_on(&device, measure(&device, &mut KernelCache::default(), &some));
    let checked = checked.expect("the kernels run");
    for one in &checked {
        assert!(!one.ok(), "{from:?} made {to:?} in {} goes unseen: NMSE {:e}", one.kernel, one.nmse);
    }
    let refused = refuse_wrong(device.facts(), &checked).expect_err("a wrong kernel").to_string();
    assert!(refused.contains(&some[0].program.name) && refused.contains("refused"), "{refused}");
}

#[test]
fn a_matrix_kernel_made_wrong_is_refused_by_name() {
    let lanes =
        |tile, from, to| check_found(LANES, &format!("matmul_lanes/q4_1/texture/k128/{tile}"), from, to);
    lanes("1x4/set", "+ w.w * x4.w", "+ w.w * x4.z");
    // The high nibbles of a block.
    lanes("4x4/set", "vec4<u32>(j & 4u)", "vec4<u32>(j & 2u)");
    lanes("1x4/add", "= y[at] + with", "= with");
    lanes("1x4/silu", "exp(-pairs.xz)", "exp(pairs.xz)");
    // One that never writes.
    lanes("1x4/set", "wanted < params.num_groups", "wanted > params.num_groups");
    check_found(SPLIT, "matvec_split/q4_1/buffer/k128/1x4/set", "fma(w.w, x4.w,", "fma(w.w, x4.z,");
    check_found(SPLIT, "matmul_tiled_2x4/q4_1/buffer/k128/32x4/set", "fma(w.w, x4.w,", "fma(w.w, x4.z,");
    let quads = |name: &str, from, to| check_found(QUADS, name, from, to);
    quads("matvec_quads/q4_1/buffer/k128/1x4/set", "block == 1u", "block == 0u");
    quads("matvec_quads/q4_1/buffer/k128/4x4/set", "(1u * TM + segment)", "(0u * TM + segment)");
    quads("matmul_tiled_8x4/q4_1/buffer/k128/64x4/set", "fma(w.w, x4.w,", "fma(w.w, x4.z,");
    check_found(QUADS_F16, "matmul_tiled_f16_4x4/q4_1/buffer/k128/32x4/set", "(x4[3u])", "(x4[2u])");
    check_found(LANES, "embed", "(token >> 2u) & 7u", "(token >> 2u) & 3u");
}

#[test]
fn a_kernel_for_8_bits_made_wrong_is_refused_by_name() {
    let found =
        |name, from, to| check_found_of(PAIRS, &pair_shapes(WeightFormat::Q4_1, PAIRS), name, from, to);
    // The carry of the lower half, the weights 4j + 1 and 4j + 3, the minimum.
    found("matmul_pairs/q4_1/texture/k320/1x4/set", "= 0x8000u;", "= 0u;");
    found(
        "matmul_pairs/q4_1/texture/k320/4x4/set",
        "products[0u][2u] += odd[2u] *",
        "products[0u][2u] += even[2u] *",
    );
    found("matmul_pairs/q4_1/texture/k320/4x4/add", "* x_sums[0u]", "* -x_sums[0u]");
    found("matmul_pairs/q4_1/texture/k320/1x4/add_norm", "= residual[at] + with", "= with");
    found("matmul_pairs/q4_1/texture/k320/2x4/add_norm", "dot(value, value)", "dot(value, value) + 1.0");
    found("matmul_pairs/q4_1/texture/k320/2x4/add_norm", "value * gamma[i], counts", "value, counts");
    found(
        "matmul_pairs/q4_1/texture/k320/1x4/silu",
        "inverseSqrt(sum_slice(own)",
        "inverseSqrt(1.1 * sum_slice(own)",
    );
    found("matmul_pairs/q4_1/texture/k320/4x4/silu", "max(top, subgroupShuffleXor(top, 4u))", "top");
    found("norm_parts/160/y_i8_texture", "words, next", "next, words");
    found(
        "norm_parts/160/y_i8_texture",
        "squares[row * SQUARES + block]",
        "squares[row * SQUARES + block + 1u]",
    );
    found("paged_attention_lanes/2x64/b8/texture/i8_texture", "(q.xy <<", "(q.yx <<");
    found("quantise/192", "127.0 / top", "126.0 / top");
}

#[test]
fn a_product_that_writes_the_cache_made_wrong_is_refused_by_name() {
    let rope = rope_kv_write::Variant {
        num_heads: 6,
        num_kv_heads: 2,
        head_vec4s: 16,
        block_size: 8,
        work_home: Home::Texture,
        kv: KvFormat::F16,
    };
    let mut shapes = shapes(WeightFormat::Q4_1);
    shapes.products.truncate(1);
    shapes.products[0].store = Store::RopeKv(rope);
    let placed =
        |tile, from, to| check_found_of(LANES, &shapes, &format!("/k128/{tile}/rope_kv/1+1x64"), from, to);
    placed("1x4", "a * cosine - b * sine", "a * cosine + b * sine");
    placed("1x4", "subgroupShuffleXor(own.z, 4u)", "subgroupShuffleXor(own.z, 2u)");
    placed("2x4", "y[at + HEAD_CELLS] = cell.b", "y[at + HEAD_CELLS] = b");
    placed(
        "2x4",
        "put_value(cache_row, slot, i, KvCell(a, b))",
        "put_value(cache_row, slot, i, KvCell(b, a))",
    );
    // Rows that are nobody's, put where the first row of a block belongs.
    placed("4x4", "place.z == NOWHERE", "place.z == 77u");
}

#[test]
fn a_row_kernel_made_wrong_is_refused_by_name() {
    check_found(LANES, "rms_norm/72/gather/texture/subgroups", "inverseSqrt(mean", "sqrt(mean");
    check_found(SPLIT, "rms_norm/72/gather/buffer/workgroup", "source = sample_rows[row]", "source = row");
    // A number that is none.
    check_found(
        LANES,
        "rms_norm/72/gather/texture/subgroups",
        "* scale * gamma[i]",
        "* scale * gamma[i] / (scale - scale)",
    );
    let rope = |from, to| check_found(LANES, "rope_kv_write", from, to);
    rope("a * cosine - b * sine", "a * cosine + b * sine");
    rope("KvCell(turned_a, turned_b)", "KvCell(turned_a, turned_a)");
    // A key beside its place.
    rope("let slot = place.z % BLOCK_SIZE;", "let slot = (place.z + 1u) % BLOCK_SIZE;");
    // One position too few.
    let fewer = "let last = max(rows[row].y, 1u) - 1u;";
    check_found(LANES, "paged_attention_lanes/", "let last = rows[row].y;", fewer);
    check_found(SPLIT, "paged_attention/", "let last = rows[row].y;", fewer);
    check_found(QUADS, "paged_attention_wide/", "let last = rows[row].y;", fewer);
    // A team that looks at the first one's positions, and one whose sum is left out.
    check_found(QUADS, "paged_attention_wide/", "turn + team * 64u", "turn");
    check_found(QUADS, "paged_attention_wide/", "sum += part * team_totals[h * TEAMS + 1u];", "");
    check_found(LANES, "silu_mul", "exp(-gate)", "exp(gate)");
    check_found(SPLIT, "sample", "scaled + gumbel(", "scaled - gumbel(");
}

#[test]
fn the_doctors_kernels_compute_what_they_say() {
    let device = open(DeviceOptions::default());
    let mut cache = KernelCache::default();
    let words: Vec<u32> = (0..stream::bytes(2) as u32 / 4).map(|i| i.wrapping_mul(2_654_435_761)).collect();
    let sums = vec![0u8; stream::THREADS as usize * 4];
    let contents: [&[u8]; 2] = [bytemuck::cast_slice(&words), &sums];
    for home in [Home::Buffer, Home::Texture] {
        let program = stream::program(2, home).expect("it composes");
        let probe = block_on(&device, Probe::new(&device, &mut cache, program, &contents)).expect("it fits");
        let written = block_on(&device, probe.run(&device, stream::workgroups(), 1)).expect("it runs");
        let got = bytemuck::pod_collect_to_vec::<u8, u32>(&written[0]);
        assert!(got == stream::cpu(&words), "sums of words in a {}", home.name());
    }

    let params = peak::Params { factor: 0.999, addend: 0.002 };
    let threads = 128;
    let contents: [&[u8]; 2] = [bytemuck::bytes_of(&params), &vec![0xff; threads as usize * 4]];
    let program = peak::program().expect("it composes");
    let probe = block_on(&device, Probe::new(&device, &mut cache, program, &contents)).expect("it fits");
    let written = block_on(&device, probe.run(&device, peak::workgroups(threads), 1)).expect("it runs");
    let got: Vec<f32> = bytemuck::pod_collect_to_vec(&written[0]);
    assert!(nmse(&got, (0..threads).map(|thread| peak::cpu(&params, thread))) < 1e-8);
}
