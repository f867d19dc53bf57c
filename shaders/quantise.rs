//! `quantise.wgsl`: rows of f32 in 8 bits, for the products that take them so; the layout of such rows, and their twin.
//!
//! Invariant: what is written of 16 numbers depends on them alone.

use core::mem::offset_of;

use bytemuck::{Pod, Zeroable};

use crate::weights::{Home, UNIT, WeightFormat};
use crate::{BindingKind, ComposeError, Program, compose};

/// How products take their left factor.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Activations {
    /// IEEE single.
    #[default]
    F32,
    /// x = scale * q, 8 bits, a scale for every 16 numbers.
    I8,
}

impl Activations {
    /// Texels of 16 bytes in a row of `width` numbers.
    pub fn row_texels(self, width: u32) -> u32 {
        let units = width.div_ceil(UNIT);
        match self {
            Self::F32 => units * (UNIT / 4),
            Self::I8 => units * UNIT_TEXELS,
        }
    }

    /// Whether products with weights of `format` can take them.
    pub fn multiply(self, format: WeightFormat) -> bool {
        match self {
            Self::F32 => true,
            Self::I8 => matches!(format, WeightFormat::Q4_0 | WeightFormat::Q4_1),
        }
    }

    /// Lower-case name.
    pub fn name(self) -> &'static str {
        match self {
            Self::F32 => "f32",
            Self::I8 => "i8",
        }
    }

    /// What it adds to the name of a kernel that writes it.
    pub(crate) fn prefix(self) -> &'static str {
        match self {
            Self::F32 => "",
            Self::I8 => "i8_",
        }
    }

    /// The snippet by which a product reads rows at `home`.
    pub(crate) fn x_snippet(self, home: Home) -> &'static str {
        match (self, home) {
            (Self::F32, _) => home.x_snippet(),
            (Self::I8, Home::Buffer) => wgsl!("common/x_words_buffer.wgsl"),
            (Self::I8, Home::Texture) => wgsl!("common/x_words_texture.wgsl"),
        }
    }

    /// The snippets by which 8 lanes write rows at `home`, a vec4 each; they take the constant `Y_BINDING`.
    pub(crate) fn y_snippets(self, home: Home) -> Vec<&'static str> {
        self.put_snippets(home, wgsl!("common/put_f32.wgsl"), wgsl!("common/put_i8.wgsl"))
    }

    /// The same for half a block at a time, a vec2 a lane.
    pub(crate) fn y_halves_snippets(self, home: Home) -> Vec<&'static str> {
        let [f32, i8] = [wgsl!("common/put_halves_f32.wgsl"), wgsl!("common/put_halves_i8.wgsl")];
        self.put_snippets(home, f32, i8)
    }

    fn put_snippets(self, home: Home, f32: &'static str, i8: &'static str) -> Vec<&'static str> {
        match self {
            Self::F32 => vec![home.y_snippet(), f32],
            Self::I8 => vec![y_words_snippet(home), i8, wgsl!("common/pairs.wgsl")],
        }
    }
}

/// Where rows that a product reads live, and how they are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Form {
    /// Where.
    pub home: Home,
    /// How.
    pub activations: Activations,
}

impl Form {
    /// f32 in a buffer.
    pub const PLAIN: Self = Self { home: Home::Buffer, activations: Activations::F32 };

    /// What it adds to a kernel's name behind `role`, where it is not plain.
    pub(crate) fn suffix(self, role: &str) -> String {
        match self == Self::PLAIN {
            true => String::new(),
            false => format!("/{role}_{}{}", self.activations.prefix(), self.home.name()),
        }
    }
}

fn y_words_snippet(home: Home) -> &'static str {
    match home {
        Home::Buffer => wgsl!("common/y_words_buffer.wgsl"),
        Home::Texture => wgsl!("common/y_words_texture.wgsl"),
    }
}

/// Texels of a unit of 64 numbers in 8 bits: two for each of its halves of a block, and one for each half's scale.
const UNIT_TEXELS: u32 = 12;

/// The uniform.
#[repr(C)]
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
pub struct Params {
    /// vec4s a row of x.
    pub x_pitch: u32,
    /// Texels a row of y.
    pub y_pitch: u32,
}

/// The uniform's members and where they lie.
pub const PARAMS: &[(&str, u32)] =
    &[("x_pitch", offset_of!(Params, x_pitch) as u32), ("y_pitch", offset_of!(Params, y_pitch) as u32)];

/// The kernel for rows of `units` units of 64, written at `y_home`.
pub fn program(units: u32, y_home: Home) -> Result<Program, ComposeError> {
    Ok(Program {
        name: format!("quantise/{}/{}", units * UNIT, y_home.name()),
        wgsl: compose(
            &[("UNITS", units), ("Y_BINDING", 2)],
            wgsl!("quantise.wgsl"),
            &[y_words_snippet(y_home), wgsl!("common/pairs.wgsl")],
        )?,
        bindings: vec![BindingKind::Uniform, BindingKind::Read, y_home.y_binding()],
        subgroups: false,
    })
}

/// The grid for `rows` rows of `units` units of 64.
pub fn workgroups(units: u32, rows: u32) -> [u32; 3] {
    [(units * 4).div_ceil(32), rows, 1]
}

/// A row in 8 bits: the texels' words as kernels write them, and the numbers that they stand for.
pub fn cpu(row: &[f32]) -> (Vec<u32>, Vec<f32>) {
    let mut words = vec![0u32; Activations::I8.row_texels(row.len() as u32) as usize * 4];
    let mut numbers = Vec::with_capacity(row.len());
    for (idx, half) in row.chunks(16).enumerate() {
        let unit = idx / 4 * UNIT_TEXELS as usize * 4;
        let top = half.iter().fold(0.0f32, |top, v| top.max(v.abs()));
        let scale = top / 127.0;
        let inverse = if top > 1e-30 { 127.0 / top } else { 0.0 };
        let q = |i: usize| half.get(i).map_or(0, |v| (v * inverse).round_ties_even() as i32);
        for word in 0..8 {
            let first = word / 2 * 4 + word % 2;
            let pair = (q(first) << 16).wrapping_add(q(first + 2));
            words[unit + idx % 4 * 8 + word] = pair as u32;
        }
        let extra = unit + 32 + idx % 4 * 4;
        words[extra] = scale.to_bits();
        words[extra + 1] = (scale * (0..16).map(q).sum::<i32>() as f32).to_bits();
        numbers.extend((0..half.len()).map(|i| scale * q(i) as f32));
    }
    (words, numbers)
}
