//! lab2
use firstlight_engine::gpu::*;
use firstlight_engine::model::*;
use firstlight_engine::runner::*;
use firstlight_engine::sched::*;
use firstlight_tests::gpu::*;
use std::sync::Arc;
use std::time::Instant;
fn batch(ids: &[u32], start: u32, sample: bool) -> Batch {
    let n = ids.len() as u32;
    Batch {
        token_ids: ids.to_vec(),
        positions: (start..start + n).collect(),
        slot_mapping: (start..start + n).collect(),
        query_start: vec![0, n],
        seq_lens: vec![start + n],
        block_tables: vec![(0..(start + n).div_ceil(16)).map(BlockId).collect()],
        sample_rows: if sample {
            vec![SampleRow {
                row: n - 1,
                params: Arc::default(),
                position: start + n,
                history: vec![],
                prompt_len: 0,
            }]
        } else {
            vec![]
        },
    }
}
fn main() {
    let dl = std::env::args().any(|a| a == "--default-limits");
    let device = open(DeviceOptions { default_limits: dl });
    let mut choice = KernelChoice::for_adapter(device.facts());
    if std::env::args().any(|a| a == "--gpu-kernels") {
        choice = KernelChoice {
            matmul: MatmulFamily::Split,
            home: firstlight_shaders::Home::Buffer,
            subgroups: false,
            sample_on: SampleOn::Gpu,
        };
    }
    println!("{choice}");
    let path = std::env::var("FIRSTLIGHT_MODEL_FILE").unwrap();
    let t = Instant::now();
    let source = MemorySource { name: "m".into(), bytes: std::fs::read(path).unwrap() };
    let ck = pollster::block_on(Checkpoint::open_gguf(source)).unwrap();
    let limits = PassLimits {
        max_num_seqs: 8,
        max_batch_tokens: 512,
        block_size: 16,
        num_blocks: 128,
        max_model_len: 2048,
    };
    let mut r = pollster::block_on(GpuRunner::load(device, &ck, limits, choice, &mut |_| ())).unwrap();
    println!(
        "load {:?}, {} kernels, {} dispatches, {:?} of {} allocated {:?}",
        t.elapsed(),
        r.num_kernels(),
        r.num_dispatches(),
        r.resident_bytes(),
        ck.total_bytes(),
        r.device().allocated_bytes()
    );
    let t = Instant::now();
    {
        let d: *const Device = r.device();
        let _ = d;
    }
    let handle = r.device().handle().clone();
    let drive = |f: &mut dyn FnMut() -> ()| f();
    let _ = drive;
    macro_rules! go {
        ($e:expr) => {{
            let mut f = std::pin::pin!($e);
            let mut cx = std::task::Context::from_waker(std::task::Waker::noop());
            loop {
                match f.as_mut().poll(&mut cx) {
                    std::task::Poll::Ready(v) => break v,
                    _ => {
                        handle.poll(wgpu::PollType::wait_indefinitely()).unwrap();
                    }
                }
            }
        }};
    }
    use std::future::Future;
    go!(r.warm_up()).unwrap();
    println!("warm {:?}", t.elapsed());
    let g: serde_json::Value =
        serde_json::from_str(&std::fs::read_to_string("tests/golden/golden.json").unwrap()).unwrap();
    let st = std::fs::read("tests/golden/golden.safetensors").unwrap();
    let st = safetensors::SafeTensors::deserialize(&st).unwrap();
    for p in g["prompts"].as_array().unwrap() {
        let name = p["name"].as_str().unwrap();
        let ids: Vec<u32> =
            p["input_ids"].as_array().unwrap().iter().map(|v| v.as_u64().unwrap() as u32).collect();
        let want: Vec<u32> =
            p["greedy_ids"].as_array().unwrap().iter().map(|v| v.as_u64().unwrap() as u32).collect();
        let b = batch(&ids, 0, true);
        for _ in 0..3 {
            let t = Instant::now();
            let o = go!(r.execute(&b)).unwrap();
            println!("  {:?} gpu {:?}", t.elapsed(), o.gpu_ns.map(|n| n / 1000));
        }
        let t = Instant::now();
        let logits = go!(r.logits(&b)).unwrap().remove(0);
        let pre = t.elapsed();
        let reference: Vec<f32> =
            bytemuck::pod_collect_to_vec(st.tensor(&format!("{name}.last_logits")).unwrap().data());
        let (mut e, mut pw) = (0f64, 0f64);
        for (a, b) in logits.iter().zip(&reference) {
            e += (*a as f64 - *b as f64).powi(2);
            pw += (*b as f64).powi(2);
        }
        let mut out = vec![];
        let mut pos = ids.len() as u32;
        let mut tok = go!(r.execute(&b)).unwrap().tokens[0].token;
        let t = Instant::now();
        let mut gpu = 0;
        loop {
            out.push(tok);
            if out.len() == 48 {
                break;
            }
            let bb = batch(&[tok], pos, true);
            let o = go!(r.execute(&bb)).unwrap();
            tok = o.tokens[0].token;
            gpu += o.gpu_ns.unwrap_or(0);
            pos += 1;
        }
        let dec = t.elapsed().as_secs_f64();
        println!(
            "{name}: {} tokens, prefill {:.1} tok/s, decode {:.1} tok/s (gpu {:.1}), nmse {:.2e}, ids equal {}",
            ids.len(),
            ids.len() as f64 / pre.as_secs_f64(),
            47.0 / dec,
            47e9 / gpu as f64,
            e / pw,
            out == want
        );
    }
}
