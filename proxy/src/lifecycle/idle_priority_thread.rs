//! A thread for work that must not delay requests.

use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::Duration;

use thread_priority::{NormalThreadSchedulePolicy, ThreadPriority, ThreadSchedulePolicy};
use tokio::runtime::Handle;

type QueuedJob = Box<dyn FnOnce() + Send>;

const THREAD_NAME: &str = "idle-priority";

/// The lowest priority of nice(2).
const LOWEST_NICENESS: i32 = 19;

/// A thread with the scheduling policy `SCHED_IDLE` (sched(7)). It gets almost no CPU time while
/// other threads are runnable on its core, and is preempted as soon as one of them wakes up.
///
/// The lowest priority of nice(2) is not sufficient: since Linux 6.6 such a thread keeps its core
/// until its time slice ends, which delays a request by milliseconds.
pub(crate) struct IdlePriorityThread {
    jobs: mpsc::Sender<QueuedJob>,
}

impl IdlePriorityThread {
    /// Starts the thread in the runtime of the caller.
    ///
    /// # Errors
    /// If the system cannot create a thread.
    pub(crate) fn start() -> io::Result<Self> {
        let (jobs, queue) = mpsc::channel::<QueuedJob>();
        let runtime = Handle::current();
        thread::Builder::new()
            .name(THREAD_NAME.to_owned())
            .spawn(move || {
                let _runtime = runtime.enter();
                let idle = ThreadSchedulePolicy::Normal(NormalThreadSchedulePolicy::Idle);
                let thread_id = thread_priority::thread_native_id();
                fall_back_to_niceness(thread_priority::set_thread_priority_and_policy(
                    thread_id,
                    ThreadPriority::Min,
                    idle,
                ));
                for job in queue {
                    // After a panic, the waiting caller sees the closed channel and runs the work
                    // itself.
                    let _panicked = catch_unwind(AssertUnwindSafe(job));
                }
            })?;
        Ok(Self { jobs })
    }

    /// Returns the result of `work`. If it is not available within `timeout`, because no core is
    /// idle, or if `work` panics, the calling thread runs `work` itself.
    ///
    /// After a timeout, both threads may run `work` at the same time. Queued work that this thread
    /// has not started before `run` returns is skipped.
    pub(crate) fn run<T, W>(&self, timeout: Duration, work: W) -> T
    where
        T: Send + 'static,
        W: Fn() -> T + Send + Sync + 'static,
    {
        let work = Arc::new(work);
        let (result_sender, result) = mpsc::channel();
        // `run` holds the only strong reference until it returns.
        let queued = Arc::downgrade(&work);
        self.spawn(move || {
            if let Some(work) = queued.upgrade() {
                let _timed_out = result_sender.send(work());
            }
        });
        result.recv_timeout(timeout).unwrap_or_else(|_| work())
    }

    /// Queues work without waiting for it.
    pub(crate) fn spawn(&self, work: impl FnOnce() + Send + 'static) {
        // Sending fails only after the thread has ended.
        let _sent = self.jobs.send(Box::new(work));
    }
}

/// Uses the lowest niceness if the scheduling policy is refused, for example by a seccomp filter.
fn fall_back_to_niceness(policy: Result<(), thread_priority::Error>) {
    let Err(refused) = policy else { return };
    match rustix::process::nice(LOWEST_NICENESS) {
        Ok(_) => {
            tracing::warn!(%refused, "SCHED_IDLE not permitted, using nice 19");
        }
        Err(error) => {
            tracing::warn!(%refused, %error, "cannot lower priority of the idle thread");
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use parking_lot::Mutex;

    use super::*;

    const TEST_TIMEOUT: Duration = Duration::from_secs(60);

    fn thread_name() -> String {
        thread::current().name().unwrap_or_default().to_owned()
    }

    #[tokio::test]
    async fn thread_has_idle_scheduling_policy() {
        let thread = IdlePriorityThread::start().expect("a thread");
        let policy = || {
            (
                thread_name(),
                thread_priority::thread_schedule_policy().expect("a policy"),
            )
        };
        let (name, policy) = thread.run(TEST_TIMEOUT, policy);
        assert_eq!(name, THREAD_NAME);
        assert_eq!(
            policy,
            ThreadSchedulePolicy::Normal(NormalThreadSchedulePolicy::Idle)
        );
    }

    #[test]
    fn refused_policy_falls_back_to_lowest_niceness() {
        let refused = || {
            fall_back_to_niceness(Err(thread_priority::Error::OS(1)));
            rustix::process::getpriority_process(None)
        };
        assert_eq!(
            thread::spawn(refused).join().expect("no panic"),
            Ok(LOWEST_NICENESS)
        );
    }

    #[tokio::test]
    async fn timed_out_work_runs_once_on_the_caller() {
        let thread = IdlePriorityThread::start().expect("a thread");
        let (release, released) = mpsc::channel::<()>();
        thread.spawn(move || {
            let _ = released.recv();
        });
        let count = Arc::new(AtomicU32::new(0));
        let counted = Arc::clone(&count);
        let ran_on = thread.run(Duration::from_millis(1), move || {
            counted.fetch_add(1, Ordering::Relaxed);
            thread_name()
        });
        assert_ne!(ran_on, THREAD_NAME);
        drop(release);
        assert_eq!(
            thread.run(TEST_TIMEOUT, thread_name),
            THREAD_NAME,
            "later jobs run"
        );
        assert_eq!(count.load(Ordering::Relaxed), 1);
    }

    #[tokio::test]
    async fn panic_is_repeated_on_the_caller() {
        let thread = IdlePriorityThread::start().expect("a thread");
        let threads = Arc::new(Mutex::new(Vec::new()));
        let recorded = Arc::clone(&threads);
        let panics = move || -> String {
            recorded.lock().push(thread_name());
            panic!("a deliberate panic")
        };
        let caller = thread_name();
        catch_unwind(AssertUnwindSafe(|| thread.run(TEST_TIMEOUT, panics))).expect_err("a panic");
        assert_eq!(*threads.lock(), [THREAD_NAME.to_owned(), caller]);
        assert_eq!(
            thread.run(TEST_TIMEOUT, thread_name),
            THREAD_NAME,
            "later jobs run"
        );
    }
}
