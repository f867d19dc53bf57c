//! Activations in 8 bits beside the exact ones, position by position.

use firstlight_engine::gpu::KernelChoice;
use firstlight_shaders::Activations;
use firstlight_tests::served::{Answer, Asked, LIMITS, run};

use super::divergence::{beside_exact, measured};
use super::{requests, some_goldens};

fn in_8_bits(choice: KernelChoice) -> KernelChoice {
    KernelChoice { activations: Activations::I8, ..choice }
}

#[test]
fn in_8_bits_they_lead_astray_by_little() {
    let (golden, held) = measured("activations in 8 bits", &mut beside_exact(in_8_bits));
    assert!(golden.mean() < 0.002 && golden.agreement() > 0.98, "{golden:?}");
    if let Some(held) = held {
        assert!(held.mean() < 0.003 && held.agreement() > 0.97, "{held:?}");
    }
}

#[test]
fn in_8_bits_a_batch_changes_nothing() {
    let (goldens, answered) = some_goldens(&["hello", "capital", "code"], 16);
    let requests = requests(&goldens, answered);
    let [_, mut rounded] = beside_exact(in_8_bits);
    let mut ids = |requests: &[Asked]| -> Vec<Vec<u32>> {
        let answers = run(&mut rounded, LIMITS, LIMITS.into(), requests);
        answers.iter().map(Answer::ids).collect()
    };
    let together = ids(&requests);
    for (request, together) in requests.iter().zip(&together) {
        assert_eq!(ids(std::slice::from_ref(request)), std::slice::from_ref(together));
    }
}
