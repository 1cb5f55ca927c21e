//! The access log: one JSON object per line, written by a dedicated thread.
//!
//! A request only appends to a buffer in memory. If the disk is slow or full, the buffer fills up,
//! and events are dropped and counted.

mod event;

use std::fs::{File, OpenOptions};
use std::io::Write;
use std::os::fd::AsFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};
use postern_core::exit::Exit;
use postern_core::log_limit::LogLimit;
use prometheus::IntCounter;

use crate::config;
use crate::config::{AccessLogSink, ClientAddressDetail};
pub use event::AccessEvent;

/// Maximum delay of an event in the buffer.
const FLUSH_INTERVAL: Duration = Duration::from_millis(250);

/// Maximum time for which shutdown waits for a sink that accepts nothing, such as a pipe that is
/// not read.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(2);

/// Interval at which shutdown checks whether the writer has ended.
const CLOSE_POLL_INTERVAL: Duration = Duration::from_millis(2);

/// Maximum bytes of events that wait for a slow sink; further ones are dropped and counted.
const MAX_BUFFER_BYTES: usize = 8 << 20;

/// Buffered bytes at which the writer is woken early.
const WAKE_BYTES: usize = 64 << 10;

/// The access log. Dropping the last handle writes the buffered events as far as the sink accepts
/// them within [`CLOSE_TIMEOUT`].
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
    reopen: bool,
    closed: bool,
}

struct Writer {
    sink: File,
    /// The path of a file, which another program may move away.
    path: Option<PathBuf>,
    dropped: IntCounter,
    failures: LogLimit,
    is_failing: bool,
}

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
        let duplicate = |output: &dyn AsFd| output.as_fd().try_clone_to_owned().map(File::from);
        let (sink, path) = match &config.to {
            AccessLogSink::Off => (None, None),
            AccessLogSink::Stdout => (Some(duplicate(&std::io::stdout())), None),
            AccessLogSink::Stderr => (Some(duplicate(&std::io::stderr())), None),
            AccessLogSink::File(path) => (Some(open(path)), Some(path.clone())),
        };
        let name = path
            .as_deref()
            .unwrap_or(Path::new("standard output"))
            .display();
        let name = name.to_string();
        let failed =
            |error| Exit::unavailable(format!("{name}: cannot write the access log: {error}"));
        let writer = sink.map(|sink| {
            let writer = Writer {
                sink: sink?,
                path,
                dropped: dropped.clone(),
                failures: LogLimit::new(),
                is_failing: false,
            };
            let shared = Arc::clone(&shared);
            std::thread::Builder::new()
                .name("access-log".to_owned())
                .spawn(move || writer.run(&shared))
        });
        Ok(Self {
            shared,
            writer: writer.transpose().map_err(failed)?,
            capacity: MAX_BUFFER_BYTES,
            dropped,
            client_address: config.client_address,
        })
    }

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

impl Drop for AccessLog {
    fn drop(&mut self) {
        self.shared.state.lock().closed = true;
        self.shared.wake.notify_one();
        let Some(writer) = self.writer.take() else {
            return;
        };
        let until = Instant::now() + CLOSE_TIMEOUT;
        while !writer.is_finished() && Instant::now() < until {
            std::thread::sleep(CLOSE_POLL_INTERVAL);
        }
    }
}

/// Opens a file to append to it, and creates it if it does not exist.
fn open(path: &Path) -> std::io::Result<File> {
    let mut options = OpenOptions::new();
    options.create(true).append(true).mode(0o640).open(path)
}

impl Writer {
    fn run(mut self, shared: &SharedBuffer) {
        let mut batch = Vec::new();
        loop {
            let mut state = shared.state.lock();
            let is_idle = |state: &mut BufferState| {
                state.buffer.len() < WAKE_BYTES && !state.reopen && !state.closed
            };
            shared
                .wake
                .wait_while_for(&mut state, is_idle, FLUSH_INTERVAL);
            std::mem::swap(&mut batch, &mut state.buffer);
            let (reopen, closed) = (std::mem::take(&mut state.reopen), state.closed);
            drop(state);
            if !batch.is_empty() {
                self.write(&batch);
            }
            batch.clear();
            batch.shrink_to(4 * WAKE_BYTES);
            if reopen {
                self.reopen();
            }
            if closed {
                return;
            }
        }
    }

    fn write(&mut self, batch: &[u8]) {
        match self.sink.write_all(batch) {
            Ok(()) if self.is_failing => {
                self.is_failing = false;
                tracing::info!("access log written again");
            }
            Ok(()) => {}
            Err(error) => {
                self.is_failing = true;
                let lost = batch.iter().filter(|byte| **byte == b'\n').count() as u64;
                self.dropped.inc_by(lost);
                if let Some(suppressed) = self.failures.admit() {
                    tracing::warn!(%error, lost, suppressed, "access log write failed");
                }
            }
        }
    }

    /// Opens the file again, which has been moved away. The old one stays in use if that fails.
    fn reopen(&mut self) {
        let Some(path) = &self.path else { return };
        match open(path) {
            Ok(fresh) => self.sink = fresh,
            Err(error) => {
                tracing::warn!(%error, path = %path.display(), "access log reopen failed");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failed_writes_are_logged_once_with_their_end() {
        let (log, _guard) = postern_core::testing::CapturedLog::start();
        let count = |words: &[&str]| log.with(words);
        let open = |path: &str| OpenOptions::new().write(true).open(path).expect("opens");
        let mut writer = Writer {
            sink: open("/dev/full"),
            path: None,
            dropped: IntCounter::new("dropped", "dropped").expect("a name"),
            failures: LogLimit::new(),
            is_failing: false,
        };
        for _ in 0..3 {
            writer.write(b"one\ntwo\n");
        }
        let words = ["access log write failed", "lost=2"];
        assert_eq!(count(&words), 1, "{}", log.text());
        assert_eq!(writer.dropped.get(), 6);
        writer.sink = open("/dev/null");
        for _ in 0..2 {
            writer.write(b"one\n");
        }
        assert_eq!(count(&["access log written again"]), 1, "{}", log.text());
    }

    #[test]
    fn events_above_the_buffer_limit_are_counted() {
        let dropped = IntCounter::new("dropped", "dropped").expect("a name");
        let config = config::AccessLogConfig {
            to: AccessLogSink::Off,
            client_address: ClientAddressDetail::Off,
        };
        let mut log = AccessLog::open(&config, dropped.clone()).expect("opens");
        log.capacity = 8;
        log.append(b"1234567\n");
        log.append(b"1234567\n");
        assert_eq!(dropped.get(), 1);
    }
}
