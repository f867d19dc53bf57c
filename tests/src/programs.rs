//! Every kernel that the engine may compile, in every variant: what the checks without a GPU run over.

use std::mem::size_of;

use firstlight_shaders::matmul::Store;
use firstlight_shaders::matmul_tiled::Arithmetic;
use firstlight_shaders::{
    Activations, Form, Home, KvFormat, Program, WeightFormat, embed, matmul, matmul_lanes, matmul_tiled,
    matvec_quads, matvec_split, norm_parts, paged_attention, quantise, rms_norm, rope_kv_write, sample,
    silu_mul,
};

/// Names of members and where they lie.
pub type Members = &'static [(&'static str, u32)];

/// A program, with what the Rust side believes of the structs that it reads.
pub struct Subject {
    /// The program.
    pub program: Program,
    /// Struct name in WGSL, members and offsets in Rust, size in Rust.
    pub structs: Vec<(&'static str, Members, usize)>,
}

impl Subject {
    /// A program whose only struct is its uniform, `Params`.
    pub fn new<P>(program: Program, params: Members) -> Self {
        Self { program, structs: vec![("Params", params, size_of::<P>())] }
    }

    /// Adds another struct.
    pub fn and<T>(mut self, name: &'static str, members: Members) -> Self {
        self.structs.push((name, members, size_of::<T>()));
        self
    }
}

/// Every program.
pub fn all_subjects() -> Vec<Subject> {
    let mut subjects = matrix_kernels();
    subjects.extend([Home::Buffer, Home::Texture].map(|y_home| {
        let program = quantise::program(11, y_home).expect("quantise composes");
        Subject::new::<quantise::Params>(program, quantise::PARAMS)
    }));
    for activations in [Activations::F32, Activations::I8] {
        for home in [Home::Buffer, Home::Texture] {
            let program = norm_parts::program(576, Form { home, activations }).expect("norm_parts composes");
            subjects.push(Subject::new::<norm_parts::Params>(program, norm_parts::PARAMS));
        }
    }
    subjects.extend(embeddings());
    subjects.extend(norms());
    subjects.extend(attention());
    for (work_home, kv) in KvFormat::ALL.into_iter().flat_map(|kv| [(Home::Buffer, kv), (Home::Texture, kv)])
    {
        let rope = rope(work_home, kv).program().expect("rope composes");
        subjects.push(Subject::new::<rope_kv_write::Params>(rope, rope_kv_write::PARAMS));
    }
    let silu = silu_mul::program().expect("silu_mul composes");
    let sample = sample::program().expect("sample composes");
    subjects.extend([
        Subject::new::<silu_mul::Params>(silu, silu_mul::PARAMS),
        Subject::new::<sample::Params>(sample, sample::PARAMS).and::<sample::Row>("Row", sample::ROW),
    ]);
    subjects
}

/// The same, without what the Rust side believes.
pub fn all_programs() -> Vec<Program> {
    all_subjects().into_iter().map(|s| s.program).collect()
}

fn matrix_kernels() -> Vec<Subject> {
    let mut programs = Vec::new();
    // A constant like any other: one value, with segments that are full, short and empty.
    let units = 11;
    for format in WeightFormat::ALL {
        for store in Store::ALL {
            // A bias snippet does not know the tile, nor a tile the bias: one tile has both.
            for (tile_rows, bias) in [(1, true), (1, false), (2, false), (4, false), (8, false)] {
                for (home, x, subgroups) in lane_places(format) {
                    let lanes = matmul_lanes::Variant {
                        format,
                        units,
                        home,
                        x,
                        written: x,
                        norm_width: 0,
                        store,
                        bias,
                        tile_rows,
                        subgroups,
                        quads: false,
                    };
                    programs.push(lanes.program());
                    if !subgroups && x.activations == Activations::F32 {
                        programs.push(matmul_lanes::Variant { quads: true, ..lanes }.program());
                    }
                    if subgroups && x.home == Home::Texture {
                        let store = if store == Store::Add { Store::AddNorm } else { store };
                        let halves = matmul_lanes::Variant { norm_width: 576, store, ..lanes };
                        programs.push(halves.program());
                        if store == Store::Set {
                            programs.extend(placed(halves).map(matmul_lanes::Variant::program));
                        }
                    }
                }
                programs.push(matvec_split::Variant { format, units, store, bias, tile_rows }.program());
            }
            for (tile_rows, bias, lanes) in
                [(1, true, 0), (1, false, 0), (1, false, 16), (1, false, 32), (1, false, 64), (4, false, 32)]
            {
                let quads = matvec_quads::Variant { format, units, store, bias, tile_rows, lanes };
                programs.push(quads.program());
            }
            for (tile_rows, bias, thread_rows) in
                [(32, true, 2), (32, false, 2), (64, false, 4), (32, false, 4), (64, false, 8)]
            {
                for arithmetic in [Arithmetic::F32, Arithmetic::F16] {
                    if arithmetic == Arithmetic::F32 || thread_rows * 8 == tile_rows {
                        let tiled = matmul_tiled::Variant {
                            format,
                            units,
                            store,
                            bias,
                            tile_rows,
                            thread_rows,
                            arithmetic,
                        };
                        programs.push(tiled.program());
                    }
                }
            }
        }
    }
    programs
        .into_iter()
        .map(|p| Subject::new::<matmul::Params>(p.expect("a matrix kernel composes"), matmul::PARAMS))
        .collect()
}

/// The default model's heads, in a cache of one kind.
fn rope(work_home: Home, kv: KvFormat) -> rope_kv_write::Variant {
    rope_kv_write::Variant { num_heads: 9, num_kv_heads: 3, head_vec4s: 16, block_size: 16, work_home, kv }
}

/// Such a product of q, k and v that turns them and writes the cache.
fn placed(lanes: matmul_lanes::Variant) -> impl Iterator<Item = matmul_lanes::Variant> {
    let caches = [(Home::Texture, KvFormat::F16), (Home::Buffer, KvFormat::F32)];
    // A tile and a format of weights know nothing of how the cache is stored.
    let of_one = if lanes.tile_rows == 4 && lanes.format == WeightFormat::Q4_1 { 2 } else { 1 };
    caches.into_iter().take(of_one).map(move |(work_home, kv)| matmul_lanes::Variant {
        store: Store::RopeKv(rope(work_home, kv)),
        ..lanes
    })
}

/// Where weights of `format` live, where and how x does, and whether there are subgroups.
fn lane_places(format: WeightFormat) -> Vec<(Home, Form, bool)> {
    let mut places = Vec::new();
    for activations in [Activations::F32, Activations::I8] {
        let at = |home| Form { home, activations };
        if activations.multiply(format) {
            places.extend([
                (Home::Buffer, at(Home::Buffer), false),
                (Home::Texture, at(Home::Buffer), true),
                (Home::Texture, at(Home::Texture), true),
                (Home::Texture, at(Home::Texture), false),
            ]);
        }
    }
    places
}

fn embeddings() -> impl Iterator<Item = Subject> {
    let homes = |format| [Home::Buffer, Home::Texture].map(|home| embed::program(format, home));
    WeightFormat::ALL
        .into_iter()
        .flat_map(homes)
        .map(|p| Subject::new::<embed::Params>(p.expect("an embedding composes"), embed::PARAMS))
}

fn norms() -> Vec<Subject> {
    let mut programs = Vec::new();
    for width_vec4s in [2, 144] {
        for (gather, subgroups) in [(false, false), (false, true), (true, false), (true, true)] {
            for y_home in [Home::Buffer, Home::Texture] {
                programs.push(rms_norm::program(width_vec4s, gather, y_home, subgroups));
            }
        }
    }

    programs
        .into_iter()
        .map(|p| Subject::new::<rms_norm::Params>(p.expect("a norm composes"), rms_norm::PARAMS))
        .collect()
}

fn attention() -> Vec<Subject> {
    let mut programs: Vec<Program> = Vec::new();
    for head_vec4s in [2, 4, 6, 16, 32] {
        for head_group in [1, 2, 3, 4, 7, 8] {
            for (subgroups, few_threads, teams) in
                [(false, false, 1), (false, false, 4), (false, true, 1), (true, true, 1)]
            {
                let work_home = if subgroups { Home::Texture } else { Home::Buffer };
                let variant = paged_attention::Variant {
                    head_vec4s,
                    head_group,
                    block_size: 16,
                    work_home,
                    kv: KvFormat::F32,
                    y_home: work_home,
                    activations: Activations::F32,
                    subgroups,
                    few_threads,
                    teams,
                };
                let in_8_bits = paged_attention::Variant { activations: Activations::I8, ..variant };
                let lanes_write = subgroups && head_vec4s.is_multiple_of(paged_attention::WHOLE_HEAD / 4);
                let written = [Some(variant), lanes_write.then_some(in_8_bits)].into_iter().flatten();
                // How the cache is stored and how heads share it know nothing of each other.
                let formats = if head_group == 3 { &KvFormat::ALL[..] } else { &[KvFormat::F32] };
                let stored =
                    |variant| formats.iter().map(move |&kv| paged_attention::Variant { kv, ..variant });
                for variant in written.flat_map(stored) {
                    let program = variant.program().expect("attention composes");
                    // Groups of 1 and 7 are one program, and so are those of 4 and 8.
                    if !programs.contains(&program) {
                        programs.push(program);
                    }
                }
            }
        }
    }
    programs
        .into_iter()
        .map(|p| Subject::new::<paged_attention::Params>(p, paged_attention::PARAMS))
        .collect()
}
