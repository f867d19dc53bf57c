//! `firstlight doctor` as a script sees it. Runs the real binary, which must have been built.

use std::process::{Command, Output};

use serde_json::Value;

use super::super::cli::binary;

fn doctor(flags: &[&str], settings: &[(&str, &str)]) -> Output {
    let mut command = Command::new(binary());
    command.arg("doctor").args(flags).env("FIRSTLIGHT_AUTOTUNE", "off").envs(settings.iter().copied());
    command.output().expect("the binary starts")
}

#[test]
fn the_report_is_one_object_with_kernels_and_speeds() {
    let output = doctor(&["--json", "--default-limits"], &[]);
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
    let report: Value = serde_json::from_slice(&output.stdout).expect("stdout is JSON alone");
    let adapters = report["adapters"].as_array().expect("adapters");
    let chosen = &report["chosen"];
    let index = chosen["index"].as_u64().expect("an index") as usize;
    assert!(adapters[index]["max_binding_bytes"].as_u64() >= Some(128 << 20), "{report}");
    assert_eq!(chosen["default_limits"], true);
    assert!(chosen["kernels"].as_str().is_some_and(|kernels| kernels.contains("without subgroups")));
    assert_eq!((&chosen["chosen_by"], &chosen["choice"]["subgroups"]), (&"facts".into(), &"off".into()));
    assert!(chosen["why"].as_str().is_some_and(|why| !why.is_empty()));
    let kernels = chosen["self_test"].as_array().expect("kernels");
    for kernel in kernels {
        assert_eq!(kernel["ok"], true, "{kernel}");
        assert!(kernel["nmse"].as_f64().is_some_and(|nmse| nmse < 1e-8), "{kernel}");
    }
    for part in ["q4_1", "q8_0", "f32", "embed", "rms_norm", "rope_kv_write", "paged_attention", "silu_mul"] {
        let tested = |kernel: &Value| kernel["kernel"].as_str().is_some_and(|name| name.contains(part));
        assert!(kernels.iter().any(tested), "{part} is tested");
    }
    let measures = chosen["measures"].as_array().expect("measures");
    let units: Vec<_> = measures.iter().filter_map(|measure| measure["unit"].as_str()).collect();
    assert_eq!(units, ["GB/s", "GFLOP/s", "us", "us"]);
    for measure in measures {
        let number = |key: &str| measure[key].as_f64().expect("a number");
        assert!(number("repeats") >= 5.0, "{measure}");
        assert!(0.0 < number("min") && number("min") <= number("median"), "{measure}");
        assert!(number("median") <= number("max") && number("max").is_finite(), "{measure}");
    }
}

#[test]
fn a_machine_without_an_adapter_is_told_what_to_install() {
    let nothing = [("VK_DRIVER_FILES", "/nonexistent.json"), ("VK_ICD_FILENAMES", "/nonexistent.json")];
    // A file that the loader cannot read hides every driver; elsewhere than on Vulkan it changes nothing.
    if cfg!(target_os = "linux") {
        let output = doctor(&[], &nothing);
        let sentence = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(3), "{sentence}");
        assert!(sentence.contains("install"), "{sentence}");
        assert!(output.stdout.is_empty());
    }
    let output = doctor(&["--adapter", "99"], &[]);
    let sentence = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(3), "{sentence}");
    assert!(sentence.contains("--adapter \"99\"") && sentence.contains("0: "), "{sentence}");
}
