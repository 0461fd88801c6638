//! How soon a thread runs where more of them want to than there are processors.

/// Most steps that a thread can stand back.
pub const STEPS_MAX: u8 = 19;

/// The calling thread stands back by so many steps of nice(2), and so do threads that it starts from now on. Each step
/// gives it about a fifth less of a processor that others want as well, and they preempt it sooner; of one that nobody
/// else wants it has all. On Linux this is the thread's and not its process's (sched(7)), and needs no privilege;
/// where a sandbox refuses it, the thread stays as it is.
pub fn stand_back(steps: u8) {
    // Nothing but speed depends on it.
    let _ = rustix::process::nice(steps.min(STEPS_MAX).into());
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::process::getpriority_process;

    #[test]
    fn one_thread_stands_back_and_no_other_does() {
        let own = || getpriority_process(None).unwrap();
        let before = own();
        let of_thread = std::thread::spawn(move || {
            stand_back(3);
            let once = own();
            stand_back(u8::MAX);
            (once, own())
        });
        let (once, most) = of_thread.join().unwrap();
        assert_eq!(once, (before + 3).min(STEPS_MAX.into()));
        assert_eq!(most, i32::from(STEPS_MAX), "more than there are is the most");
        assert_eq!(own(), before);
    }
}
