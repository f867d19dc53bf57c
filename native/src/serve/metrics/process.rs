//! What Prometheus' own clients say of a process, where the system tells it for the reading of a file.
//!
//! Linux only; elsewhere there is nothing. Invariant: a figure that the system does not give is absent, not 0.

/// Name, kind, help and value of each.
pub(super) fn readings() -> Vec<(&'static str, &'static str, &'static str, u64)> {
    let Ok(status) = std::fs::read_to_string("/proc/self/status") else { return Vec::new() };
    let field = |name: &str| -> Option<u64> {
        let line = status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
        line.split_whitespace().next()?.parse().ok()
    };
    let open = std::fs::read_dir("/proc/self/fd").ok().map(|files| files.count() as u64);
    let limits = std::fs::read_to_string("/proc/self/limits").unwrap_or_default();
    let most = limits.lines().find_map(|line| line.strip_prefix("Max open files"));
    let most = most.and_then(|line| line.split_whitespace().next()?.parse().ok());
    let kib = |name: &str| field(name).map(|kib| kib.saturating_mul(1024));
    let known = [
        ("process_resident_memory_bytes", "Memory that the process has in use.", kib("VmRSS")),
        ("process_virtual_memory_bytes", "Memory that the process has asked for.", kib("VmSize")),
        ("process_threads", "Threads of the process.", field("Threads")),
        ("process_open_fds", "Open files and sockets.", open),
        ("process_max_fds", "The most of them.", most),
    ];
    let known = known.into_iter().filter_map(|(name, help, value)| Some((name, "gauge", help, value?)));
    known.collect()
}
