//! The access log: one JSON object per line, written by a dedicated thread.
//!
//! A request only appends to a buffer in memory. If the disk is slow or full, the buffer fills up,
//! and events are dropped and counted.

mod event;
mod file;

use std::io::Write;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};
use postern_core::exit::Exit;
use prometheus::IntCounter;

use crate::config;
use crate::config::{AccessLogSink, ClientAddressDetail};
pub use event::AccessEvent;
pub(crate) use event::{append_text, logged_address};
use file::LogFile;

/// Maximum delay of an event in the buffer.
const FLUSH_INTERVAL: Duration = Duration::from_millis(250);

/// Maximum time for which shutdown waits for a sink that accepts nothing, such as a pipe that is
/// not read.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(2);

/// Interval at which shutdown checks whether the writer has ended.
const CLOSE_POLL_INTERVAL: Duration = Duration::from_millis(2);

/// Minimum time between two log events about failed writes.
const FAILURE_LOG_INTERVAL: Duration = Duration::from_secs(10);

/// Buffered bytes at which the writer is woken early.
const WAKE_BYTES: usize = 64 << 10;

/// The access log. Dropping the last handle writes the buffered events as far as the sink accepts
/// them within [`CLOSE_TIMEOUT`]; the others are dropped and counted.
#[derive(Debug)]
pub(crate) struct AccessLog {
    shared: Arc<SharedBuffer>,
    writer: Option<JoinHandle<()>>,
    capacity: usize,
    dropped: IntCounter,
    pub(crate) client_address: ClientAddressDetail,
}

#[derive(Debug, Default)]
struct SharedBuffer {
    state: Mutex<BufferState>,
    wake: Condvar,
}

#[derive(Debug, Default)]
struct BufferState {
    buffer: Vec<u8>,
    /// Number of appended events.
    appended: u64,
    /// Number of appended events that were written, or could not be written.
    done: u64,
    reopen: bool,
    closed: bool,
    /// Whether the events that were not done when the log was closed were counted as dropped.
    abandoned: bool,
}

/// Failed writes, for log events at intervals.
#[derive(Debug, Default)]
struct WriteFailures {
    /// Time from which the next failure is logged; `None` while writing succeeds.
    next_event_at: Option<Instant>,
    suppressed: u64,
}

enum LogSink {
    Stdout,
    Stderr,
    File(LogFile),
}

// === impl AccessLog ===

impl AccessLog {
    /// Opens the sink and starts the writer thread.
    ///
    /// # Errors
    /// Status 69 if the file cannot be opened.
    pub(crate) fn open(
        config: &config::AccessLogConfig,
        dropped: IntCounter,
    ) -> Result<Self, Exit> {
        let shared = Arc::new(SharedBuffer::default());
        let sink = match &config.to {
            AccessLogSink::Off => None,
            AccessLogSink::Stdout => Some(LogSink::Stdout),
            AccessLogSink::Stderr => Some(LogSink::Stderr),
            AccessLogSink::File(path) => {
                let file = LogFile::open(path.clone(), config.max_bytes).map_err(|error| {
                    Exit::unavailable(format!(
                        "{}: cannot write the access log: {error}",
                        path.display()
                    ))
                })?;
                Some(LogSink::File(file))
            }
        };
        let writer = sink.map(|sink| {
            let (shared, dropped) = (Arc::clone(&shared), dropped.clone());
            std::thread::Builder::new()
                .name("access-log".to_owned())
                .spawn(move || run_writer(&shared, sink, &dropped))
        });
        let writer = writer.transpose().map_err(|error| {
            Exit::unavailable(format!("cannot start the access log's thread: {error}"))
        })?;
        let (capacity, client_address) = (config.buffer_bytes, config.client_address);
        Ok(Self {
            shared,
            writer,
            capacity,
            dropped,
            client_address,
        })
    }

    /// Returns whether the access log is enabled.
    pub(crate) fn is_enabled(&self) -> bool {
        self.writer.is_some()
    }

    /// Appends one line, which ends in a newline.
    pub(crate) fn append(&self, line: &[u8]) {
        let mut state = self.shared.state.lock();
        if state.buffer.len() + line.len() > self.capacity {
            drop(state);
            self.dropped.inc();
            return;
        }
        let wake = state.buffer.len() < WAKE_BYTES && state.buffer.len() + line.len() >= WAKE_BYTES;
        state.buffer.extend_from_slice(line);
        state.appended += 1;
        drop(state);
        if wake {
            self.shared.wake.notify_one();
        }
    }

    /// Reopens the file, after it was moved.
    pub(crate) fn reopen(&self) {
        self.shared.state.lock().reopen = true;
        self.shared.wake.notify_one();
    }
}

impl AccessLog {
    /// Counts the events that were not written, and logs the number if standard error accepts it.
    fn count_lost(&self) {
        let mut state = self.shared.state.lock();
        let lost = state.appended - state.done;
        state.abandoned = true;
        drop(state);
        self.dropped.inc_by(lost);
        // Standard error may be the same pipe.
        let warning = std::thread::spawn(move || {
            tracing::warn!(lost, "access log closed before its sink took all events");
        });
        ends_within(CLOSE_TIMEOUT / 4, &warning);
    }
}

/// Waits for a thread that may be blocked. Returns whether it ended within the timeout.
fn ends_within(timeout: Duration, thread: &JoinHandle<()>) -> bool {
    let until = Instant::now() + timeout;
    while !thread.is_finished() {
        if Instant::now() >= until {
            return false;
        }
        std::thread::sleep(CLOSE_POLL_INTERVAL);
    }
    true
}

impl Drop for AccessLog {
    fn drop(&mut self) {
        self.shared.state.lock().closed = true;
        self.shared.wake.notify_one();
        if let Some(writer) = self.writer.take()
            && !ends_within(CLOSE_TIMEOUT, &writer)
        {
            self.count_lost();
        }
    }
}

// === impl WriteFailures ===

impl WriteFailures {
    /// Logs a failure, at most one in [`FAILURE_LOG_INTERVAL`], and the first success after it.
    fn note(&mut self, written: &std::io::Result<()>, lost: u64) {
        let now = Instant::now();
        match (written, self.next_event_at) {
            (Ok(()), None) => {}
            (Ok(()), Some(_)) => {
                let suppressed = self.suppressed;
                tracing::info!(suppressed, "access log written again");
                *self = Self::default();
            }
            (Err(_), Some(at)) if now < at => self.suppressed += 1,
            (Err(error), _) => {
                let suppressed = std::mem::take(&mut self.suppressed);
                tracing::warn!(%error, lost, suppressed, "access log write failed");
                self.next_event_at = Some(now + FAILURE_LOG_INTERVAL);
            }
        }
    }
}

/// Runs the writer thread.
fn run_writer(shared: &SharedBuffer, mut sink: LogSink, dropped: &IntCounter) {
    let (mut batch, mut failures) = (Vec::new(), WriteFailures::default());
    loop {
        let mut state = shared.state.lock();
        let is_idle = |state: &mut BufferState| {
            state.buffer.len() < WAKE_BYTES && !state.reopen && !state.closed
        };
        shared
            .wake
            .wait_while_for(&mut state, is_idle, FLUSH_INTERVAL);
        std::mem::swap(&mut batch, &mut state.buffer);
        let taken = state.appended;
        let (reopen, closed) = (std::mem::take(&mut state.reopen), state.closed);
        drop(state);
        let written = sink.write(&batch);
        let lost = written.as_ref().err().map_or(0, |_| line_count(&batch));
        let mut state = shared.state.lock();
        state.done = taken;
        if written.is_err() && !state.abandoned {
            dropped.inc_by(lost);
        }
        drop(state);
        if !batch.is_empty() {
            failures.note(&written, lost);
        }
        batch.clear();
        batch.shrink_to(4 * WAKE_BYTES);
        if reopen {
            sink.reopen();
        }
        if closed {
            return;
        }
    }
}

fn line_count(batch: &[u8]) -> u64 {
    batch.iter().filter(|byte| **byte == b'\n').count() as u64
}

// === impl LogSink ===

impl LogSink {
    fn write(&mut self, batch: &[u8]) -> std::io::Result<()> {
        if batch.is_empty() {
            return Ok(());
        }
        match self {
            Self::Stdout => {
                let mut out = std::io::stdout().lock();
                out.write_all(batch)?;
                out.flush()
            }
            Self::Stderr => std::io::stderr().lock().write_all(batch),
            Self::File(file) => file.write(batch),
        }
    }

    fn reopen(&mut self) {
        if let Self::File(file) = self {
            file.reopen();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn log(to: AccessLogSink, buffer_bytes: usize) -> (AccessLog, IntCounter) {
        let dropped = IntCounter::new("dropped", "dropped").expect("a name");
        let config = config::AccessLogConfig {
            to,
            buffer_bytes,
            client_address: ClientAddressDetail::Off,
            max_bytes: Some(8),
        };
        (
            AccessLog::open(&config, dropped.clone()).expect("opens"),
            dropped,
        )
    }

    #[test]
    fn reopen_after_rotation_loses_no_event() {
        let folder = tempfile::tempdir().expect("a folder");
        let (path, moved) = (
            folder.path().join("access.log"),
            folder.path().join("access.log.1"),
        );
        let (log, dropped) = log(AccessLogSink::File(path.clone()), 1 << 20);
        log.append(b"one\n");
        std::fs::rename(&path, &moved).expect("moves");
        log.reopen();
        while !path.exists() {
            std::thread::yield_now();
        }
        log.append(b"two\n");
        drop(log);
        assert_eq!(std::fs::read_to_string(moved).expect("reads"), "one\n");
        assert_eq!(std::fs::read_to_string(path).expect("reads"), "two\n");
        assert_eq!(dropped.get(), 0);
    }

    #[test]
    fn failed_writes_are_logged_at_intervals_and_once_at_the_end() {
        let (log, _guard) = postern_core::testing::CapturedLog::start();
        let count = |words: &[&str]| log.with(words);
        let (mut failures, full) = (WriteFailures::default(), || {
            Err(std::io::Error::from(std::io::ErrorKind::StorageFull))
        });
        failures.note(&Ok(()), 0);
        for _ in 0..3 {
            failures.note(&full(), 7);
        }
        assert_eq!(count(&["access log write failed"]), 1, "{}", log.text());
        failures.next_event_at = Some(Instant::now());
        failures.note(&full(), 7);
        assert_eq!(
            count(&["access log write failed", "lost=7", "suppressed=2"]),
            1,
            "{}",
            log.text()
        );
        failures.note(&Ok(()), 0);
        failures.note(&Ok(()), 0);
        assert_eq!(count(&["access log written again"]), 1, "{}", log.text());
    }

    #[test]
    fn events_lost_on_a_full_disk_are_counted() {
        let (log, dropped) = log(AccessLogSink::File("/dev/full".into()), 1 << 20);
        log.append(b"one\n");
        log.append(b"two\n");
        drop(log);
        assert_eq!(dropped.get(), 2);
    }

    #[test]
    fn events_of_a_blocked_sink_are_counted_once() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("pipe");
        let made = std::process::Command::new("mkfifo").arg(&path).status();
        assert!(made.expect("mkfifo runs").success());
        let options = std::fs::OpenOptions::new().read(true).write(true).clone();
        let reader = options.open(&path).expect("opens");
        let (log, dropped) = log(AccessLogSink::File(path), 1 << 20);
        // More than the pipe's buffer.
        for _ in 0..300 {
            let mut line = vec![b'x'; 1_023];
            line.push(b'\n');
            log.append(&line);
        }
        let shared = Arc::clone(&log.shared);
        drop(log);
        let counted = dropped.get();
        assert!(counted > 0, "the writer is blocked");
        drop(reader);
        // The writer's handle is the other one.
        while Arc::strong_count(&shared) > 1 {
            std::thread::yield_now();
        }
        assert_eq!(dropped.get(), counted);
    }

    #[test]
    fn events_above_the_buffer_limit_are_counted() {
        let (log, dropped) = log(AccessLogSink::Off, 8);
        log.append(b"1234567\n");
        log.append(b"1234567\n");
        assert_eq!(dropped.get(), 1);
    }
}
