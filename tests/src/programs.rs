//! Every kernel that the engine may compile, in every variant: what the checks without a GPU run over.

use std::mem::size_of;

use firstlight_shaders::matmul::Store;
use firstlight_shaders::{
    Home, Program, WeightFormat, matmul, matmul_lanes, matmul_tiled, matvec_split, sample,
};

/// A program, with what the Rust side believes of the structs that it reads.
pub struct Subject {
    /// The program.
    pub program: Program,
    /// Struct name in WGSL, members and offsets in Rust, size in Rust.
    pub structs: Vec<(&'static str, &'static [(&'static str, u32)], usize)>,
}

impl Subject {
    /// A program whose only struct is its uniform, `Params`.
    pub fn new<P>(program: Program, params: &'static [(&'static str, u32)]) -> Self {
        Self { program, structs: vec![("Params", params, size_of::<P>())] }
    }

    /// Adds another struct.
    pub fn and<T>(mut self, name: &'static str, members: &'static [(&'static str, u32)]) -> Self {
        self.structs.push((name, members, size_of::<T>()));
        self
    }
}

/// Every program.
pub fn all_subjects() -> Vec<Subject> {
    let mut subjects = matrix_kernels();
    subjects.push(
        Subject::new::<sample::Params>(sample::program().expect("sample composes"), sample::PARAMS)
            .and::<sample::Row>("Row", sample::ROW),
    );
    subjects
}

/// The same, without what the Rust side believes.
pub fn all_programs() -> Vec<Program> {
    all_subjects().into_iter().map(|s| s.program).collect()
}

fn matrix_kernels() -> Vec<Subject> {
    let mut programs = Vec::new();
    // Even and odd numbers of units along K differ in nothing but a constant.
    let units = 9;
    for format in WeightFormat::ALL {
        for store in Store::ALL {
            // A bias snippet does not know the tile, nor a tile the bias: one tile has both.
            for (tile_rows, bias) in [(1, true), (1, false), (2, false), (4, false), (8, false)] {
                for home in [Home::Buffer, Home::Texture] {
                    for subgroups in [false, true] {
                        let lanes =
                            matmul_lanes::Variant { format, home, store, bias, units, tile_rows, subgroups };
                        programs.push(lanes.program());
                    }
                }
                programs.push(matvec_split::Variant { format, store, bias, units, tile_rows }.program());
            }
            for (tile_rows, bias) in [(32, true), (32, false), (64, false)] {
                programs.push(matmul_tiled::Variant { format, store, bias, units, tile_rows }.program());
            }
        }
    }
    programs
        .into_iter()
        .map(|p| Subject::new::<matmul::Params>(p.expect("a matrix kernel composes"), matmul::PARAMS))
        .collect()
}
