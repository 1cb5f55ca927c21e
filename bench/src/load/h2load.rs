use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::Command;

use super::LoadResult;
use crate::tls::{CIPHER_SUITE, KEY_EXCHANGE};

/// The protocol of a connection to the proxy.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum EdgeProtocol {
    /// HTTP/1.1 without TLS.
    Http1,
    /// HTTP/1.1 over TLS 1.3.
    TlsHttp1,
    /// HTTP/2 over TLS 1.3.
    TlsHttp2,
}

impl EdgeProtocol {
    pub(crate) fn is_tls(self) -> bool {
        self != Self::Http1
    }
}

/// A closed-loop load of one thread with keep-alive connections, made by h2load.
#[derive(Clone, Debug)]
pub(crate) struct H2loadLoad<'a> {
    pub(crate) protocol: EdgeProtocol,
    pub(crate) connections: u32,
    /// Concurrent streams of each connection; one for HTTP/1.1.
    pub(crate) streams: u32,
    pub(crate) path: &'a str,
    pub(crate) token: &'a str,
    /// File whose bytes are sent with POST; GET without it.
    pub(crate) upload: Option<PathBuf>,
    /// Size of the body of a correct response.
    pub(crate) response_bytes: usize,
}

impl H2loadLoad<'_> {
    /// Runs the load for some seconds.
    ///
    /// # Errors
    /// h2load is not installed, or the connections have another protocol.
    pub(crate) fn run(&self, address: SocketAddr, seconds: u32) -> io::Result<LoadResult> {
        let mut command = Command::new("h2load");
        command.args(["-t1", &format!("-c{}", self.connections)]);
        command.args([&format!("-m{}", self.streams), &format!("-D{seconds}")]);
        command.arg(format!("--header=authorization: Bearer {}", self.token));
        if self.protocol != EdgeProtocol::TlsHttp2 {
            command.arg("--h1");
        }
        if self.protocol.is_tls() {
            command.arg(format!("--tls13-ciphers={CIPHER_SUITE}"));
            command.arg(format!("--groups={KEY_EXCHANGE}"));
        }
        if let Some(file) = &self.upload {
            command.arg("-d").arg(file);
        }
        let scheme = if self.protocol.is_tls() {
            "https"
        } else {
            "http"
        };
        let output = command
            .arg(format!("{scheme}://{address}{}", self.path))
            .output()
            .map_err(|error| io::Error::other(format!("h2load: {error}")))?;
        let text = String::from_utf8_lossy(&output.stdout);
        if self.protocol.is_tls() {
            negotiated(&text, self.protocol)?;
        }
        let in_flight = self.connections * self.streams;
        read(&text, self.response_bytes, in_flight, seconds).ok_or_else(|| {
            let said = String::from_utf8_lossy(&output.stderr);
            io::Error::other(format!("h2load reported no results: {}", said.trim()))
        })
    }
}

/// Checks version, cipher suite, key exchange and application protocol of the connections.
fn negotiated(text: &str, protocol: EdgeProtocol) -> io::Result<()> {
    let alpn = match protocol {
        EdgeProtocol::Http1 | EdgeProtocol::TlsHttp1 => "http/1.1",
        EdgeProtocol::TlsHttp2 => "h2",
    };
    let expected = [
        ("TLS Protocol: ", "TLSv1.3"),
        ("Cipher: ", CIPHER_SUITE),
        ("Server Temp Key: ", KEY_EXCHANGE),
        ("Application protocol: ", alpn),
    ];
    for (label, wanted) in expected {
        let value = text.lines().find_map(|line| line.strip_prefix(label));
        let value = value.and_then(|value| value.split(' ').next());
        if value != Some(wanted) {
            return Err(io::Error::other(format!(
                "{label}{} instead of {wanted}",
                value.unwrap_or("none")
            )));
        }
    }
    Ok(())
}

/// Parses h2load's report. Responses with another status than 2xx have failed, and if the bodies
/// do not have the expected size in total, every request has. Of responses in flight at the end, a
/// part may have been received.
fn read(text: &str, response_bytes: usize, in_flight: u32, seconds: u32) -> Option<LoadResult> {
    let done = counter(text, "requests: ", "done")?;
    let succeeded = counter(text, "status codes: ", "2xx")?;
    let failed = counter(text, "requests: ", "failed")?;
    let traffic = text.lines().find(|line| line.starts_with("traffic: "))?;
    let data = traffic.rsplit('(').next()?.strip_suffix(") data")?;
    let data: f64 = data.parse().ok()?;
    let expected = succeeded as f64 * response_bytes as f64;
    let allowance = f64::from(in_flight) * response_bytes as f64;
    let is_complete = (data - expected).abs() <= allowance;
    let failed = failed.max(done.saturating_sub(succeeded));
    Some(LoadResult {
        requests: succeeded,
        per_second: succeeded as f64 / f64::from(seconds),
        failed: if succeeded == 0 || !is_complete {
            done.max(1)
        } else {
            failed
        },
        p99_us: f64::NAN,
        answer_bytes: data / succeeded.max(1) as f64,
    })
}

/// Returns the number before `unit` in the line that starts with `label`.
fn counter(text: &str, label: &str, unit: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(label))?;
    let mut parts = line.split(", ").filter_map(|part| part.split_once(' '));
    parts.find(|(_, name)| *name == unit)?.0.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A report of h2load 1.52 about a load with responses of 50 bytes.
    fn report(requests: &str, statuses: &str, data: u32) -> String {
        format!(
            "TLS Protocol: TLSv1.3\nCipher: TLS_AES_128_GCM_SHA256\nServer Temp Key: X25519 253 bits\n\
             Application protocol: h2\n\nfinished in 1.01s, 28417.00 req/s, 3.14MB/s\n\
             requests: 100 total, 164 started, {requests}, 0 errored, 0 timeout\n\
             status codes: {statuses}\n\
             traffic: 3.14MB (3297156) total, 1.30MB (1364016) headers (space savings 51.02%), 1.36MB ({data}) data\n"
        )
    }

    #[test]
    fn report_of_h2load_is_parsed() {
        let text = report(
            "100 done, 100 succeeded, 0 failed",
            "100 2xx, 0 3xx, 0 4xx, 0 5xx",
            5_120,
        );
        let seen = read(&text, 50, 4, 2).unwrap();
        assert_eq!((seen.requests, seen.failed), (100, 0));
        assert!((seen.per_second - 50.0).abs() < 1e-9);
        negotiated(&text, EdgeProtocol::TlsHttp2).unwrap();
        assert!(read("h2load: connection refused", 50, 4, 2).is_none());
    }

    #[test]
    fn wrong_statuses_and_sizes_have_failed() {
        let failed = |requests, statuses, data| {
            read(&report(requests, statuses, data), 50, 4, 2)
                .unwrap()
                .failed
        };
        assert_eq!(
            failed(
                "100 done, 97 succeeded, 3 failed",
                "97 2xx, 0 3xx, 0 4xx, 3 5xx",
                4_850
            ),
            3
        );
        assert_eq!(
            failed(
                "100 done, 100 succeeded, 0 failed",
                "90 2xx, 10 3xx, 0 4xx, 0 5xx",
                4_500
            ),
            10,
            "a redirect is no response of the origin"
        );
        assert_eq!(
            failed(
                "100 done, 100 succeeded, 0 failed",
                "100 2xx, 0 3xx, 0 4xx, 0 5xx",
                4_700
            ),
            100,
            "bodies are too short"
        );
        assert_eq!(
            failed(
                "0 done, 0 succeeded, 0 failed",
                "0 2xx, 0 3xx, 0 4xx, 0 5xx",
                0
            ),
            1,
            "no response"
        );
    }

    #[test]
    fn other_negotiated_protocol_is_an_error() {
        let text = report(
            "1 done, 1 succeeded, 0 failed",
            "1 2xx, 0 3xx, 0 4xx, 0 5xx",
            50,
        );
        let error = |text: &str, protocol| negotiated(text, protocol).unwrap_err().to_string();
        assert_eq!(
            error(&text, EdgeProtocol::TlsHttp1),
            "Application protocol: h2 instead of http/1.1"
        );
        assert_eq!(
            error(&text.replace("v1.3", "v1.2"), EdgeProtocol::TlsHttp2),
            "TLS Protocol: TLSv1.2 instead of TLSv1.3"
        );
    }
}
