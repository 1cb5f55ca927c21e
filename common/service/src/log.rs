//! Logging: one event per line on standard error.
//!
//! Messages are constants and values are fields; a field with a unit ends with it (`elapsed_ms`).
//! An error is logged once, where it is handled. Tokens, secrets, passwords, personal addresses and
//! message bodies are never logged.

use std::io::{self, IsTerminal, Write};
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use tracing::{Event, Subscriber};
use tracing_subscriber::EnvFilter;
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields};
use tracing_subscriber::registry::LookupSpan;

use postern_core::config::Env;
use postern_core::decode::{Object, defaults};
use postern_core::settings;
use postern_core::trace::Scope;

/// The environment variable with a filter for one run of a process.
const FILTER_VARIABLE: &str = "POSTERN_LOG";

/// Format of log lines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// One JSON object per line.
    Json,
    /// Human-readable text.
    Text,
}

settings! {
    /// Diagnostic log on standard error. Read at start.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub struct Log(table) {
        /// Form of a line.
        pub format: Format = "json"
            => |field| field.one_of(&[("json", Format::Json), ("text", Format::Text)]),
        /// Level, or a filter such as `info,postern_auth=debug`; `POSTERN_LOG` takes precedence.
        pub filter: String = "info" => |field| {
            let filter = field.text(1..=512)?;
            match check(&filter) {
                Ok(()) => Some(filter),
                Err(reason) => field.reject("invalid_format", reason),
            }
        },
    }
}

// === impl Log ===

impl Log {
    /// Reads the optional table `[log]` of `root`. The filter in the environment variable
    /// `POSTERN_LOG` takes precedence over the one of the file.
    #[must_use]
    pub fn read_section(root: &Object<'_>, env: &Env) -> Self {
        let log = root.or_empty("log", |field| field.object(Self::read));
        let mut log = log.unwrap_or_else(|| defaults(Self::read));
        if let Some(filter) = env.get(FILTER_VARIABLE) {
            match check(filter) {
                Ok(()) => filter.clone_into(&mut log.filter),
                Err(reason) => {
                    root.fail("invalid_format", format!("{FILTER_VARIABLE}: {reason}"));
                }
            }
        }
        log
    }
}

/// Validates a log filter.
pub fn check(filter: &str) -> Result<(), String> {
    EnvFilter::try_new(filter)
        .map(drop)
        .map_err(|error| format!("is neither a level nor a filter: {error}"))
}

/// Installs the global subscriber, which writes to standard error. `filter` is a level or a
/// `tracing` filter such as `info,postern_proxy=debug`. JSON lines have the name of the process in
/// `service`. Later calls have no effect.
pub fn init(service: &'static str, format: Format, filter: &str) {
    // `check` has rejected invalid filters before; `info` is the safe fallback.
    let filter = EnvFilter::try_new(filter).unwrap_or_else(|_| EnvFilter::new("info"));
    let builder = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(|| LossyWriter::new(io::stderr(), &IS_STALLED));
    let _already_set = match format {
        Format::Json => {
            let builder = builder.json().flatten_event(true);
            let builder = builder.map_event_format(|inner| EventLines::new(service, format, inner));
            builder.try_init()
        }
        Format::Text => {
            let builder = builder
                .with_target(false)
                .with_ansi(io::stderr().is_terminal());
            let builder = builder.map_event_format(|inner| EventLines::new(service, format, inner));
            builder.try_init()
        }
    };
}

/// Maximum wait for a reader of standard error.
const WRITE_TIMEOUT: Timespec = Timespec {
    tv_sec: 0,
    tv_nsec: 100_000_000,
};

/// Whether the last write to standard error was abandoned. Then further ones do not wait.
static IS_STALLED: AtomicBool = AtomicBool::new(false);

/// A writer that drops what a pipe without a reader does not take, so that a log that nobody reads
/// does not stop the process. A pipe that is ready for writing takes 4,096 bytes (`PIPE_BUF`).
struct LossyWriter<'s, W> {
    inner: W,
    is_stalled: &'s AtomicBool,
}

// === impl LossyWriter ===

impl<'s, W: AsFd> LossyWriter<'s, W> {
    fn new(inner: W, is_stalled: &'s AtomicBool) -> Self {
        Self { inner, is_stalled }
    }

    /// Waits for a moment, unless the last write was abandoned.
    fn is_ready(&self) -> bool {
        let mut polled = [PollFd::new(&self.inner, PollFlags::OUT)];
        let wait = match self.is_stalled.load(Ordering::Relaxed) {
            true => Timespec::default(),
            false => WRITE_TIMEOUT,
        };
        // An error of the descriptor is that of the write.
        let is_ready = poll(&mut polled, Some(&wait)) != Ok(0);
        self.is_stalled.store(!is_ready, Ordering::Relaxed);
        is_ready
    }
}

impl<W: AsFd + Write> Write for LossyWriter<'_, W> {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        match self.is_ready() {
            true => self.inner.write(line),
            false => Ok(line.len()),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        self.inner.flush()
    }
}

/// The format of all processes. JSON has `service`, `timestamp`, `level`, the fields of the event with
/// `message`, and `target`, all at the top level. The ids of the current [`Scope`] are added to each
/// event that does not have them itself.
struct EventLines<F> {
    service: &'static str,
    format: Format,
    inner: F,
}

// === impl EventLines ===

impl<F> EventLines<F> {
    fn new(service: &'static str, format: Format, inner: F) -> Self {
        Self {
            service,
            format,
            inner,
        }
    }
}

impl<S, N, F> FormatEvent<S, N> for EventLines<F>
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
    F: FormatEvent<S, N>,
{
    fn format_event(
        &self,
        context: &FmtContext<'_, S, N>,
        mut writer: Writer<'_>,
        event: &Event<'_>,
    ) -> std::fmt::Result {
        let scope = Scope::current();
        if scope.is_none() && self.format == Format::Text {
            return self.inner.format_event(context, writer, event);
        }
        let mut line = String::new();
        self.inner
            .format_event(context, Writer::new(&mut line), event)?;
        let (written, end) = match self.format {
            Format::Json => {
                write!(writer, "{{\"service\":\"{}\",", self.service)?;
                let members = line.strip_prefix('{');
                (members.and_then(|it| it.strip_suffix("}\n")), "}\n")
            }
            Format::Text => (line.strip_suffix('\n'), "\n"),
        };
        writer.write_str(written.unwrap_or(&line))?;
        if let Some(scope) = scope {
            scope.log_fields(|name, value| {
                if event.metadata().fields().field(name).is_some() {
                    return Ok(());
                }
                match self.format {
                    Format::Json => write!(writer, ",\"{name}\":\"{value}\""),
                    Format::Text => write!(writer, " {name}={value}"),
                }
            })?;
        }
        writer.write_str(end)
    }
}

#[cfg(test)]
mod tests {
    use postern_core::config::parse;
    use postern_core::testing::CapturedLog;

    use super::*;

    #[test]
    fn json_line_has_all_members_at_the_top_level() {
        let log = CapturedLog::default();
        let subscriber = tracing_subscriber::fmt()
            .json()
            .flatten_event(true)
            .map_event_format(|inner| EventLines::new("postern-auth", Format::Json, inner))
            .with_writer(log.clone())
            .finish();
        tracing::subscriber::with_default(subscriber, || {
            tracing::warn!(
                dependency = "cache",
                error = "a \"b\"\nc",
                "dependency unavailable"
            );
        });
        assert_eq!(log.lines(), 1, "one line per event");
        let line: serde_json::Value = serde_json::from_str(&log.text()).expect("JSON");
        let members = line.as_object().expect("an object").keys();
        let expected = "dependency error level message service target timestamp";
        assert!(members.eq(expected.split(' ')), "{line}");
        assert_eq!(line["service"], "postern-auth");
        assert_eq!(line["message"], "dependency unavailable");
    }

    #[test]
    fn log_that_nobody_reads_does_not_block() {
        let (mut reader, writer) = io::pipe().expect("a pipe");
        let is_stalled = AtomicBool::new(false);
        let mut log = LossyWriter::new(writer, &is_stalled);
        let line = [b'x'; 1 << 10];
        let started = std::time::Instant::now();
        for _ in 0..200 {
            log.write_all(&line).expect("writes or drops");
        }
        assert!(is_stalled.load(Ordering::Relaxed));
        // One wait, not one for each line.
        assert!(started.elapsed() < std::time::Duration::from_secs(2));
        let mut taken = [0; 60 << 10];
        io::Read::read_exact(&mut reader, &mut taken).expect("what was written");
        log.write_all(b"after").expect("writes again");
        assert!(!is_stalled.load(Ordering::Relaxed));
    }

    #[test]
    fn filter_is_that_of_the_environment_or_of_the_file() {
        let read = |variable: &str, file: &str| {
            let env = Env::from([("POSTERN_LOG", variable)]);
            let log = parse("x.toml", file, |root| Some(Log::read_section(root, &env)));
            let log = log.map(|log| log.filter);
            log.map_err(|exit| exit.message().to_owned())
        };
        let named = "[log]\nfilter = 'info,postern_auth=debug'\n";
        let wrong = "[log]\nfilter = 'a=b=c'\nformat = 'xml'\n";
        assert_eq!(read("", named).as_deref(), Ok("info,postern_auth=debug"));
        assert_eq!(read("warn", named).as_deref(), Ok("warn"));
        for (variable, file, lines) in [
            (
                "",
                wrong,
                &[
                    "x.toml:2: log.filter: is neither a level",
                    "x.toml:3: log.format: ",
                ][..],
            ),
            ("a=b=c", "", &["x.toml:1: POSTERN_LOG: is neither a level"]),
        ] {
            let said = read(variable, file).expect_err("mistakes");
            let said: Vec<&str> = said.lines().collect();
            let mut pairs = said.iter().zip(lines);
            assert!(
                said.len() == lines.len() && pairs.all(|(line, start)| line.starts_with(start)),
                "{said:?}"
            );
        }
    }
}
