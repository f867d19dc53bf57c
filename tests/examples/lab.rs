//! lab
use firstlight_engine::gpu::*;
use firstlight_shaders::matmul_lanes::*;
use firstlight_shaders::weights::*;
use firstlight_tests::gpu::*;
use std::time::Instant;
fn main() {
    let device = open(DeviceOptions::default());
    println!("{:?}", device.facts());
    let mut cache = KernelCache::default();
    let (n, k) = (1536u32, 576u32);
    for format in [WeightFormat::Q4_1, WeightFormat::Q8_0, WeightFormat::F16] {
        for (home, subgroups) in [(Home::Texture, true), (Home::Texture, false), (Home::Buffer, true)] {
            for tm in [1u32, 2, 4, 8] {
                let rows = tm.max(1) * (16 / tm).max(1);
                let rows = if tm == 1 { 1 } else { rows };
                let v = Variant { format, home, store: Store::Set, bias: false, tile_rows: tm, subgroups };
                let rb = format.row_bytes(k);
                let mut s = 12345u64;
                let mut rnd = || {
                    s ^= s << 13;
                    s ^= s >> 7;
                    s ^= s << 17;
                    s
                };
                let mut w: Vec<u8> = (0..n as usize * rb).map(|_| rnd() as u8).collect();
                // sane scales
                match format {
                    WeightFormat::Q4_1 => {
                        for b in w.chunks_mut(20) {
                            b[..4].copy_from_slice(&[0x00, 0x2c, 0x00, 0xb4]);
                        }
                    }
                    WeightFormat::Q8_0 => {
                        for b in w.chunks_mut(34) {
                            b[..2].copy_from_slice(&[0, 0x14])
                        }
                    }
                    _ => {
                        for b in w.chunks_mut(2) {
                            b[1] = (b[1] & 0x83) | 0x28;
                        }
                    }
                }
                let x: Vec<f32> = (0..rows * k).map(|_| (rnd() >> 40) as f32 / 8388608.0 - 1.0).collect();
                let shape = PackedShape::new(format, n, k);
                let (data, scales) = pack(shape, k, |c| Some(&w[c as usize * rb..][..rb]));
                let scales = if scales.is_empty() { vec![0; 128] } else { scales };
                let params = Params {
                    x_pitch: k / 4,
                    y_pitch: n,
                    y_column: 0,
                    num_units: shape.units,
                    num_groups: shape.groups,
                };
                let y = vec![0xffu8; (rows * n * 4) as usize];
                let bias = [0u8; 16];
                let t = Instant::now();
                let probe = block_on(
                    &device,
                    Probe::new(
                        &device,
                        &mut cache,
                        v.program().unwrap(),
                        &[bytemuck::bytes_of(&params), bytemuck::cast_slice(&x), &data, &scales, &bias, &y],
                    ),
                )
                .unwrap();
                let grid = v.workgroups(rows, shape.groups);
                let out = block_on(&device, probe.run(&device, grid, 1)).unwrap();
                let compile = t.elapsed();
                let got: &[f32] = bytemuck::cast_slice(&out[0]);
                let wf: Vec<f32> = w.chunks(rb).flat_map(|r| format.dequantise_row(r, k)).collect();
                let want = cpu(&x, &wf, rows as usize, n as usize, k as usize);
                let (mut e, mut p) = (0f64, 0f64);
                for (g, w) in got.iter().zip(&want) {
                    e += (*g as f64 - w).powi(2);
                    p += w * w;
                }
                let mut best = f64::MAX;
                for _ in 0..5 {
                    let t = Instant::now();
                    block_on(&device, probe.run(&device, grid, 40)).unwrap();
                    best = best.min(t.elapsed().as_secs_f64() / 40.0);
                }
                println!(
                    "{} rows {rows}: {:.0} us {:.1} GFLOP/s, first {:.0} ms, nmse {:.1e}",
                    v.program().unwrap().name,
                    best * 1e6,
                    2e-9 * (rows * n) as f64 * k as f64 / best,
                    compile.as_secs_f64() * 1e3,
                    e / p
                );
            }
        }
    }
}
