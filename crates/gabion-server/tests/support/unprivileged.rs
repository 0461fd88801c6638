//! Processes that may not raise limits, whoever runs the tests.

use rustix::thread::{
    CapabilitySet, capabilities, remove_capability_from_bounding_set, set_capabilities,
};

/// Runs `work` on a thread that may not raise limits beyond their maximum, whoever runs the test. So may no process that
/// it starts.
pub(crate) fn unprivileged<T: Send>(work: impl FnOnce() -> T + Send) -> T {
    let limited = || {
        let capability = CapabilitySet::SYS_RESOURCE;
        let mut sets = capabilities(None).unwrap();
        if sets.effective.contains(capability) {
            remove_capability_from_bounding_set(capability).unwrap();
            for set in [&mut sets.effective, &mut sets.permitted, &mut sets.inheritable] {
                set.remove(capability);
            }
            set_capabilities(None, sets).unwrap();
        }
        work()
    };
    std::thread::scope(|scope| scope.spawn(limited).join().unwrap())
}
