//! The angles by which positions turn q and k, as a table made once at load.
//!
//! Never runs in a step. Invariant: the arithmetic is the reference implementation's (frequencies and angles rounded to f32),
//! so that long contexts turn by the same angles.

use std::ops::Range;

use super::{ModelConfig, RopeScaling};

/// Radians a position for dimensions i and i + head_dim/2, `[head_dim / 2]`. `divisors` are a file's own, where it has some.
pub fn frequencies(config: &ModelConfig, divisors: Option<&[f32]>) -> Vec<f32> {
    let half = config.head_dim as usize / 2;
    (0..half)
        .map(|i| {
            let exponent = 2.0 * i as f32 / config.head_dim as f32;
            let frequency = 1.0 / config.rope_theta.powf(exponent);
            match divisors {
                Some(divisors) => frequency / divisors[i],
                None => scaled(frequency, config.rope_scaling),
            }
        })
        .collect()
}

/// One frequency under a scaling rule. Llama 3: `rope_type: llama3` of the model cards of Llama 3.1.
fn scaled(frequency: f32, scaling: RopeScaling) -> f32 {
    match scaling {
        RopeScaling::None => frequency,
        RopeScaling::Linear { factor } => frequency / factor,
        RopeScaling::Llama3 { factor, low_freq_factor, high_freq_factor, original_context } => {
            let wavelength = std::f32::consts::TAU / frequency;
            let context = original_context as f32;
            if wavelength < context / high_freq_factor {
                frequency
            } else if wavelength > context / low_freq_factor {
                frequency / factor
            } else {
                let smooth = (context / wavelength - low_freq_factor) / (high_freq_factor - low_freq_factor);
                (1.0 - smooth) * frequency / factor + smooth * frequency
            }
        }
    }
}

/// `[positions][cos head_dim/2, sin head_dim/2]`, as the rope kernel reads it.
pub fn angle_table(frequencies: &[f32], positions: Range<u32>) -> Vec<f32> {
    let mut table = Vec::with_capacity(positions.len() * frequencies.len() * 2);
    for position in positions {
        let angles = frequencies.iter().map(|&f| f64::from(position as f32 * f));
        table.extend(angles.clone().map(|a| a.cos() as f32));
        table.extend(angles.map(|a| a.sin() as f32));
    }
    table
}
