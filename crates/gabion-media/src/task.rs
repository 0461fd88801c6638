//! A small executor for futures that stay on one thread: no timers, no I/O of its own, no
//! allocation per wake. The server's loop runs every task that is ready ([`Executor::run_ready`]);
//! the simulator chooses which one goes next ([`Executor::ready`], [`Executor::run_one`]), and that
//! choice is all the nondeterminism there is.

use alloc::boxed::Box;
use alloc::sync::Arc;
use alloc::task::Wake;
use alloc::vec::Vec;
use atomic::{AtomicBool, AtomicUsize, Ordering};
use core::future::Future;
use core::pin::Pin;
#[cfg(not(all(test, loom)))]
use core::sync::atomic;
use core::task::{Context, Poll, Waker};
/// Every order in which threads can see what others store: see `interleavings`.
#[cfg(all(test, loom))]
use loom::sync::atomic;

/// A task's place in its executor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TaskId(usize);

/// Raised by whoever wakes a task, on any thread, lowered by the executor before it polls.
struct Flag {
    /// Stays so once the task has ended.
    ready: AtomicBool,
    /// Of the executor: flags of tasks that are raised.
    count: Arc<AtomicUsize>,
}

impl Flag {
    fn raise(&self) {
        if !self.ready.swap(true, Ordering::AcqRel) {
            self.count.fetch_add(1, Ordering::AcqRel);
        }
    }

    fn lower(&self) -> bool {
        let was = self.ready.swap(false, Ordering::AcqRel);
        if was {
            self.count.fetch_sub(1, Ordering::AcqRel);
        }
        was
    }

    /// Takes the flag of a task that has ended out of the count, for good: wakers outlive their
    /// tasks, and what they raised then would be lowered by nobody.
    fn end(&self) {
        if self.ready.swap(true, Ordering::AcqRel) {
            self.count.fetch_sub(1, Ordering::AcqRel);
        }
    }
}

impl Wake for Flag {
    fn wake(self: Arc<Self>) {
        self.raise();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.raise();
    }
}

struct Task {
    future: Pin<Box<dyn Future<Output = ()>>>,
    flag: Arc<Flag>,
    waker: Waker,
}

/// Owns tasks and runs those that were woken.
#[derive(Default)]
pub struct Executor {
    tasks: Vec<Option<Task>>,
    free: Vec<usize>,
    ready_count: Arc<AtomicUsize>,
    /// The task at which [`Self::run_ready_while`] goes on where it was stopped.
    stopped_at: usize,
}

impl Executor {
    /// An executor without tasks.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a task; it is ready at once.
    pub fn spawn(&mut self, future: impl Future<Output = ()> + 'static) -> TaskId {
        let flag =
            Arc::new(Flag { ready: AtomicBool::new(false), count: self.ready_count.clone() });
        flag.raise();
        let task = Task { future: Box::pin(future), waker: Waker::from(flag.clone()), flag };
        let index = match self.free.pop() {
            Some(index) => {
                assert!(self.tasks[index].is_none(), "a free place has no task");
                self.tasks[index] = Some(task);
                index
            }
            None => {
                self.tasks.push(Some(task));
                self.tasks.len() - 1
            }
        };
        TaskId(index)
    }

    /// Tasks that have not ended.
    #[must_use]
    pub fn len(&self) -> usize {
        self.tasks.len() - self.free.len()
    }

    /// Whether every task has ended.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Whether a task could make progress now.
    #[must_use]
    pub fn has_ready(&self) -> bool {
        self.ready_count.load(Ordering::Acquire) > 0
    }

    /// The tasks that could make progress now, in ascending order.
    #[must_use]
    pub fn ready(&self) -> Vec<TaskId> {
        let is_ready = |task: &Option<Task>| {
            task.as_ref().is_some_and(|task| task.flag.ready.load(Ordering::Acquire))
        };
        (0..self.tasks.len()).filter(|&i| is_ready(&self.tasks[i])).map(TaskId).collect()
    }

    /// Polls one ready task. Returns whether it was ready.
    pub fn run_one(&mut self, id: TaskId) -> bool {
        let Some(Some(task)) = self.tasks.get_mut(id.0) else { return false };
        if !task.flag.lower() {
            return false;
        }
        if task.future.as_mut().poll(&mut Context::from_waker(&task.waker)) == Poll::Ready(()) {
            let ended = self.tasks[id.0].take();
            if let Some(task) = ended {
                task.flag.end();
            }
            self.free.push(id.0);
        }
        true
    }

    /// Polls every task that is ready, once each, in ascending order; tasks woken meanwhile wait
    /// for the next call. Returns how many ran.
    pub fn run_ready(&mut self) -> usize {
        self.run_ready_while(|| true)
    }

    /// As [`Self::run_ready`], but no further task once `goes_on` says no, which is asked after
    /// each. At least one runs, and the next call begins with those that had no turn.
    pub fn run_ready_while(&mut self, mut goes_on: impl FnMut() -> bool) -> usize {
        if !self.has_ready() {
            return 0;
        }
        let mut ready = self.ready();
        let had_a_turn = ready.partition_point(|id| id.0 < self.stopped_at);
        ready.rotate_left(had_a_turn);
        let mut ran = 0;
        for id in ready {
            if ran > 0 && !goes_on() {
                self.stopped_at = id.0;
                return ran;
            }
            ran += usize::from(self.run_one(id));
        }
        self.stopped_at = 0;
        ran
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::rc::Rc;
    use core::cell::{Cell, RefCell};

    #[test]
    fn a_task_runs_when_woken_and_not_before() {
        let mut executor = Executor::new();
        let waker: Rc<RefCell<Option<Waker>>> = Rc::default();
        let polls = Rc::new(Cell::new(0));
        let (w, p) = (waker.clone(), polls.clone());
        executor.spawn(core::future::poll_fn(move |cx| {
            p.set(p.get() + 1);
            *w.borrow_mut() = Some(cx.waker().clone());
            if p.get() == 2 { Poll::Ready(()) } else { Poll::Pending }
        }));
        assert_eq!((executor.run_ready(), executor.run_ready(), polls.get()), (1, 0, 1));
        waker.borrow().as_ref().unwrap().wake_by_ref();
        assert_eq!((executor.run_ready(), executor.len(), polls.get()), (1, 0, 2));
        // A wake after the end is forgotten, and the place is used again.
        waker.borrow().as_ref().unwrap().wake_by_ref();
        assert!(!executor.has_ready(), "whoever waits for tasks would never rest");
        let id = executor.spawn(async {});
        assert_eq!(id, TaskId(0));
        executor.run_ready();
        assert!(executor.is_empty());
        assert!(!executor.has_ready());
    }
}

#[cfg(test)]
mod turns {
    use super::*;
    use alloc::rc::Rc;
    use core::cell::RefCell;

    /// Tasks that want to go on without end, and in which order they ran.
    fn restless(count: usize) -> (Executor, Rc<RefCell<Vec<usize>>>) {
        let (mut executor, order) = (Executor::new(), Rc::new(RefCell::new(Vec::new())));
        for task in 0..count {
            let order = order.clone();
            executor.spawn(core::future::poll_fn(move |cx| {
                order.borrow_mut().push(task);
                cx.waker().wake_by_ref();
                Poll::Pending
            }));
        }
        (executor, order)
    }

    #[test]
    fn whoever_had_no_turn_when_it_was_over_comes_first_in_the_next() {
        let (mut executor, order) = restless(5);
        for _ in 0..5 {
            let mut left = 2;
            let goes_on = || {
                left -= 1;
                left > 0
            };
            assert_eq!(executor.run_ready_while(goes_on), 2);
        }
        assert_eq!(*order.borrow(), [0, 1, 2, 3, 4, 0, 1, 2, 3, 4]);
        order.borrow_mut().clear();
        assert_eq!(executor.run_ready_while(|| false), 1, "one runs however short a turn is");
        assert_eq!(executor.run_ready(), 5);
        assert_eq!(*order.borrow(), [0, 1, 2, 3, 4, 0]);
        order.borrow_mut().clear();
        assert_eq!(executor.run_ready(), 5);
        assert_eq!(*order.borrow(), [0, 1, 2, 3, 4], "nobody was left out");
    }
}

/// Every order of the steps of threads, as for the skip list: `cargo xtask interleavings`.
#[cfg(all(test, loom))]
mod interleavings {
    use super::*;
    use loom::thread;

    /// A task that waits for two events, each of which another thread brings and then wakes it.
    #[test]
    fn no_wake_is_lost_and_what_comes_after_the_end_is_forgotten() {
        loom::model(|| {
            let events = Arc::new([const { () }; 2].map(|()| AtomicBool::new(false)));
            let flag = Arc::new(Flag {
                ready: AtomicBool::new(false),
                count: Arc::new(AtomicUsize::new(0)),
            });
            flag.raise();
            let threads = [0, 1].map(|number| {
                let (flag, events) = (flag.clone(), events.clone());
                thread::spawn(move || {
                    events[number].store(true, Ordering::Relaxed);
                    flag.raise();
                })
            });
            // What an executor does, as far as it gets meanwhile.
            let polls = |flag: &Flag| {
                flag.lower() && events.iter().all(|event| event.load(Ordering::Relaxed))
            };
            let mut has_ended = polls(&flag);
            if has_ended {
                flag.end();
            }
            threads.into_iter().for_each(|thread| thread.join().expect("it does not panic"));
            if !has_ended {
                // Either of them woke it after the poll that missed it.
                assert_eq!(flag.count.load(Ordering::Acquire), 1);
                has_ended = polls(&flag);
                assert!(has_ended, "a task was polled before what it was woken for was to be seen");
                flag.end();
            }
            assert_eq!(flag.count.load(Ordering::Acquire), 0);
        });
    }
}
