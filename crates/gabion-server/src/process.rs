//! Processor time of this process by the role of its threads.

/// Threads by the role that the CPU report gives them (docs/architecture.md).
const ROLES: [(&str, &str); 5] = [
    ("gabion-loop", "requests"),
    ("gabion-flush", "flush"),
    ("gabion-compact", "compaction"),
    ("gabion-ship", "shipping"),
    ("gabion-target", "target"),
];

/// Processor time in seconds.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Cpu {
    /// Of the process, threads that ended included.
    pub(crate) total: f64,
    /// In user mode.
    pub(crate) user: f64,
    /// In the kernel.
    pub(crate) system: f64,
    /// By role, in the order of the report; `other` is what is left of the total.
    pub(crate) by_role: Vec<(&'static str, f64)>,
}

/// Processor time now.
pub(crate) fn cpu() -> Cpu {
    let mut by_role: Vec<(&'static str, f64)> = ROLES.map(|(_, role)| (role, 0.0)).to_vec();
    let mut known = 0.0;
    let mut sum = 0.0;
    for (name, seconds) in gabion_proc::threads() {
        sum += seconds;
        if let Some(i) = ROLES.iter().position(|(thread, _)| *thread == name) {
            by_role[i].1 += seconds;
            known += seconds;
        }
    }
    let [user, system] = gabion_proc::processor_seconds();
    let total = (user + system).max(sum);
    by_role.push(("other", (total - known).max(0.0)));
    Cpu { total, user, system, by_role }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_roles_add_up_to_the_whole() {
        let mut work = 0_u64;
        while cpu().total == 0.0 {
            work = work.wrapping_mul(31).wrapping_add(1);
        }
        let cpu = cpu();
        let sum: f64 = cpu.by_role.iter().map(|(_, seconds)| seconds).sum();
        assert!((sum - cpu.total).abs() < 1e-6, "{cpu:?} {work}");
        assert_eq!(cpu.by_role.len(), 6);
    }
}
