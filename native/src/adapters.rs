//! The machine's adapters, and the one that is meant.
//!
//! Never opens a device. Invariant: an index names the same adapter in `doctor` and in `--adapter`.

use wgpu::{Adapter, Backends, DeviceType, Instance, InstanceDescriptor};

use crate::failure::Failure;

/// All adapters of this machine, in the system's order.
pub fn list() -> Vec<Adapter> {
    let instance = Instance::new(InstanceDescriptor::new_without_display_handle());
    pollster::block_on(instance.enumerate_adapters(Backends::PRIMARY))
}

/// The adapter that `wanted` names by index or by a part of its name; where nothing is wanted, the strongest kind.
///
/// # Errors
/// Exit code 3, with what is there or what to install.
pub fn choose(wanted: Option<&str>) -> Result<(usize, Adapter), Failure> {
    let found = list();
    let described: Vec<(String, DeviceType)> =
        found.iter().map(Adapter::get_info).map(|info| (info.name, info.device_type)).collect();
    let idx = position(&described, wanted)?;
    let chosen = found.into_iter().nth(idx);
    chosen
        .map(|adapter| (idx, adapter))
        .ok_or_else(|| Failure::no_adapter("the adapter went away; try again"))
}

fn position(found: &[(String, DeviceType)], wanted: Option<&str>) -> Result<usize, Failure> {
    if found.is_empty() {
        return Err(Failure::no_adapter(format!("no GPU adapter answered; {}", what_is_missing())));
    }
    let Some(wanted) = wanted else {
        let strength = |kind: DeviceType| match kind {
            DeviceType::DiscreteGpu => 0,
            DeviceType::IntegratedGpu => 1,
            DeviceType::VirtualGpu => 2,
            DeviceType::Other => 3,
            DeviceType::Cpu => 4,
        };
        let strongest = (0..found.len()).min_by_key(|idx| strength(found[*idx].1));
        return Ok(strongest.unwrap_or(0));
    };
    let lower = wanted.to_lowercase();
    let matching = match wanted.parse::<usize>() {
        Ok(idx) => (idx < found.len()).then_some(idx),
        // Every name has nothing as a part of it.
        Err(_) if lower.is_empty() => None,
        Err(_) => found.iter().position(|(name, _)| name.to_lowercase().contains(&lower)),
    };
    matching.ok_or_else(|| {
        let names: Vec<String> =
            found.iter().enumerate().map(|(idx, (name, _))| format!("{idx}: {name}")).collect();
        Failure::no_adapter(format!(
            "no adapter matches --adapter {wanted:?}; there are: {}",
            names.join(", ")
        ))
    })
}

/// What to do on this system when no adapter answers.
pub fn what_is_missing() -> &'static str {
    if cfg!(target_os = "linux") {
        "install your GPU's Vulkan driver, or Mesa's driver for the CPU with `sudo apt-get install mesa-vulkan-drivers libvulkan1` (`cargo xtask setup` does it on any distribution)"
    } else {
        "install your GPU's current driver"
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(wanted: Option<&str>, expected: Result<usize, &str>) {
        let found = [
            ("llvmpipe".to_owned(), DeviceType::Cpu),
            ("Arc A770".to_owned(), DeviceType::IntegratedGpu),
            ("GeForce RTX".to_owned(), DeviceType::DiscreteGpu),
        ];
        match (position(&found, wanted), expected) {
            (Ok(idx), Ok(expected)) => assert_eq!(idx, expected, "{wanted:?}"),
            (Err(failure), Err(part)) => assert!(failure.sentence.contains(part), "{failure}"),
            (got, _) => panic!("{wanted:?}: {got:?}"),
        }
    }

    #[test]
    fn an_adapter_is_named_by_index_or_by_a_part_of_its_name() {
        check(None, Ok(2));
        check(Some("0"), Ok(0));
        check(Some("geforce"), Ok(2));
        check(Some("3"), Err("there are: 0: llvmpipe, 1: Arc A770, 2: GeForce RTX"));
        check(Some(""), Err("there are: 0: llvmpipe"));
        check(Some("radeon"), Err("--adapter \"radeon\""));
        assert!(position(&[], None).is_err());
    }
}
