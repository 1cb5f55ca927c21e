//! The log events of a test.

use std::io;
use std::sync::{Arc, LazyLock};

use parking_lot::Mutex;
use tracing::subscriber::DefaultGuard;
use tracing::{Dispatch, Level};
use tracing_subscriber::fmt::MakeWriter;

use crate::log_limit::isolate_causes_of_thread;

/// A subscriber of nothing. With a single subscriber in the process, `tracing` decides by the thread
/// that first reaches an event whether the event is enabled in all threads: a test of another thread
/// without a subscriber would disable it for a test that captures it.
static SECOND_SUBSCRIBER: LazyLock<Dispatch> = LazyLock::new(|| {
    let subscriber = tracing_subscriber::fmt()
        .with_max_level(Level::DEBUG)
        .with_writer(io::sink);
    Dispatch::new(subscriber.finish())
});

/// Captures the log events of the current thread as text, one line per event.
#[derive(Clone, Debug, Default)]
pub struct CapturedLog(Arc<Mutex<Vec<u8>>>);

impl CapturedLog {
    /// Starts to capture events of every level, until the guard is dropped. A test whose runtime
    /// has one thread captures all of its events. Limits of events of the same cause begin anew, and
    /// are not shared with other tests.
    #[must_use]
    pub fn start() -> (Self, DefaultGuard) {
        LazyLock::force(&SECOND_SUBSCRIBER);
        isolate_causes_of_thread();
        let captured = Self::default();
        let subscriber = tracing_subscriber::fmt()
            .with_ansi(false)
            .with_max_level(Level::DEBUG)
            .with_writer(captured.clone())
            .finish();
        (captured, tracing::subscriber::set_default(subscriber))
    }

    /// Returns all lines.
    #[must_use]
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.0.lock()).into_owned()
    }

    /// Returns the number of lines.
    #[must_use]
    pub fn lines(&self) -> usize {
        self.text().lines().count()
    }

    /// Returns the number of lines that contain all words.
    #[must_use]
    pub fn with(&self, words: &[&str]) -> usize {
        self.text()
            .lines()
            .filter(|line| words.iter().all(|word| line.contains(word)))
            .count()
    }
}

impl io::Write for CapturedLog {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl<'a> MakeWriter<'a> for CapturedLog {
    type Writer = Self;

    fn make_writer(&'a self) -> Self {
        self.clone()
    }
}
