//! Access events and their JSON representation.

use std::cell::RefCell;
use std::io::Write;
use std::net::IpAddr;

use postern_core::clock::Timestamp;
use postern_core::network::IpNetwork;

use crate::config::ClientAddressDetail;
use crate::telemetry::access_log::AccessLog;
use crate::telemetry::live_tail::{LiveTail, TailDetails};

/// An access event. Text from clients (method, path) has been checked to be visible ASCII, or is
/// omitted.
#[derive(Debug, Default)]
pub struct AccessEvent<'a> {
    /// The request id.
    pub request_id: &'a str,
    /// The method.
    pub method: Option<&'a str>,
    /// The canonical path without the query; `None` for a rejected target.
    pub path: Option<&'a str>,
    /// The name of the route, as in metrics: `none` if no route matches, `None` for a head that was
    /// rejected before routing.
    pub route: Option<&'a str>,
    /// The response status.
    pub status: u16,
    /// `ok`, or the problem code, as in the body and the metric.
    pub code: &'a str,
    /// The problem code that a report-only policy would have rejected with.
    pub report_only: Option<&'a str>,
    /// `user` or `service`.
    pub kind: Option<&'a str>,
    /// The issuer of the caller's token; together with the subject, the identity.
    pub issuer: Option<&'a str>,
    /// The caller's subject.
    pub subject: Option<&'a str>,
    /// The name of the calling service.
    pub caller_service: Option<&'a str>,
    /// The name of the last upstream.
    pub upstream: Option<&'a str>,
    /// The address of the last attempt.
    pub upstream_address: Option<&'a str>,
    /// The cause of a failed request; `None` for rejections and responses of the upstream, whose
    /// reason is `code`.
    pub cause: Option<&'a str>,
    /// The content coding that the gateway applied to the response.
    pub encoding: Option<&'a str>,
    /// Number of upstream attempts; not logged if it is 0.
    pub attempts: u32,
    /// Microseconds from the head of the request to the end of the response.
    pub duration_us: u64,
    /// Microseconds from the choice of an address to the response head.
    pub upstream_us: Option<u64>,
    /// Bytes of the request body.
    pub request_bytes: u64,
    /// Bytes of the response body.
    pub response_bytes: u64,
    /// The protocol, such as `HTTP/1.1`.
    pub protocol: &'a str,
    /// The trace id in hexadecimal digits.
    pub trace_id: Option<&'a str>,
    /// The client address, logged in the configured detail.
    pub client: Option<IpAddr>,
}

/// The members that every event has, after the time: those of the log lines of all processes, so
/// that both can be read alike.
const CONSTANT_MEMBERS: &[u8] = br#"Z","level":"INFO","target":"postern_proxy::access","message":"request completed","service":"postern-proxy""#;

thread_local! {
    /// The line being formatted.
    static LINE_BUFFER: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
    /// The formatted text of the current second.
    static CACHED_SECOND: RefCell<(i64, String)> = const { RefCell::new((i64::MIN, String::new())) };
}

impl AccessEvent<'_> {
    /// Formats the event once, in a thread-local buffer, for the access log and for the live tail.
    pub(crate) fn write(
        &self,
        log: &AccessLog,
        tail: &LiveTail,
        details: &TailDetails<'_>,
        now: Timestamp,
    ) {
        let selected = tail.select(self);
        if !log.is_enabled() && selected.is_none() {
            return;
        }
        LINE_BUFFER.with_borrow_mut(|line| {
            line.clear();
            self.render(line, now, log.client_address);
            if log.is_enabled() {
                log.append(line);
            }
            if let Some(tails) = selected {
                tails.publish(line, details);
            }
        });
    }

    /// Formats the event as one line of JSON.
    pub fn render(&self, line: &mut Vec<u8>, now: Timestamp, client_address: ClientAddressDetail) {
        CACHED_SECOND.with_borrow_mut(|(second, text)| {
            if *second != now.unix_seconds() {
                *second = now.unix_seconds();
                *text = Timestamp::from_unix_seconds(*second).to_string();
                text.truncate(text.len().saturating_sub(4));
            }
            line.extend_from_slice(b"{\"timestamp\":\"");
            line.extend_from_slice(text.as_bytes());
            thousandths(line, now.0.rem_euclid(1000).unsigned_abs());
            line.extend_from_slice(CONSTANT_MEMBERS);
        });
        self.fields(line, client_address);
        line.extend_from_slice(b"}\n");
    }

    fn fields(&self, line: &mut Vec<u8>, client_address: ClientAddressDetail) {
        append_text(line, br#","request_id":""#, Some(self.request_id));
        append_text(line, br#","method":""#, self.method);
        append_text(line, br#","path":""#, self.path);
        append_text(line, br#","route":""#, self.route);
        number(line, br#","status":"#, u64::from(self.status));
        append_text(line, br#","code":""#, Some(self.code));
        append_text(line, br#","cause":""#, self.cause);
        append_text(line, br#","report_only":""#, self.report_only);
        append_text(line, br#","kind":""#, self.kind);
        append_text(line, br#","issuer":""#, self.issuer);
        append_text(line, br#","subject":""#, self.subject);
        append_text(line, br#","caller_service":""#, self.caller_service);
        append_text(line, br#","upstream":""#, self.upstream);
        append_text(line, br#","upstream_address":""#, self.upstream_address);
        append_text(line, br#","encoding":""#, self.encoding);
        if self.attempts > 0 {
            number(line, br#","attempts":"#, u64::from(self.attempts));
        }
        millis(line, br#","duration_ms":"#, self.duration_us);
        if let Some(upstream_us) = self.upstream_us {
            millis(line, br#","upstream_ms":"#, upstream_us);
        }
        number(line, br#","request_bytes":"#, self.request_bytes);
        number(line, br#","response_bytes":"#, self.response_bytes);
        append_text(line, br#","protocol":""#, Some(self.protocol));
        append_text(line, br#","trace_id":""#, self.trace_id);
        if let Some(address) = self
            .client
            .and_then(|client| logged_address(client, client_address))
        {
            let _memory_only = write!(line, ",\"client\":\"{address}\"");
        }
    }
}

/// Returns the address in the configured detail; `None` if it is not logged.
pub(crate) fn logged_address(client: IpAddr, detail: ClientAddressDetail) -> Option<IpAddr> {
    match (detail, client) {
        (ClientAddressDetail::Off, _) => None,
        (ClientAddressDetail::Full, client) => Some(client),
        (ClientAddressDetail::Network, client) => Some(IpNetwork::of(client, 24, 48).address()),
    }
}

/// Appends a string member. `key` includes all characters before the value, so that they are copied
/// at once.
pub(crate) fn append_text(line: &mut Vec<u8>, key: &[u8], value: Option<&str>) {
    let Some(value) = value else { return };
    line.extend_from_slice(key);
    if is_plain(value) {
        line.extend_from_slice(value.as_bytes());
    } else {
        for character in value.chars() {
            match character {
                '"' | '\\' => line.extend_from_slice(&[b'\\', character as u8]),
                '\0'..='\x1f' | '\x7f' => {
                    let _memory_only = write!(line, "\\u{:04x}", character as u32);
                }
                character => line.extend_from_slice(character.encode_utf8(&mut [0; 4]).as_bytes()),
            }
        }
    }
    line.push(b'"');
}

/// Returns whether the text needs no escaping in JSON. All bytes are examined even after a match,
/// so that the compiler can vectorize the loop.
fn is_plain(value: &str) -> bool {
    value.bytes().fold(true, |plain, byte| {
        plain & (0x20..=0x7e).contains(&byte) & (byte != b'"') & (byte != b'\\')
    })
}

fn number(line: &mut Vec<u8>, key: &[u8], value: u64) {
    line.extend_from_slice(key);
    digits(line, value);
}

/// Appends microseconds as milliseconds with three decimals.
fn millis(line: &mut Vec<u8>, key: &[u8], micros: u64) {
    line.extend_from_slice(key);
    digits(line, micros / 1000);
    line.push(b'.');
    thousandths(line, micros % 1000);
}

/// Appends a number below 1000 as three digits.
fn thousandths(line: &mut Vec<u8>, value: u64) {
    line.extend([value / 100, value / 10 % 10, value % 10].map(|digit| b'0' + (digit % 10) as u8));
}

/// Appends a number with half of the instructions of `write!`; a line contains eight.
fn digits(line: &mut Vec<u8>, mut value: u64) {
    let mut text = [0; 20];
    let mut at = text.len();
    loop {
        at -= 1;
        text[at] = b'0' + (value % 10) as u8;
        value /= 10;
        if value == 0 {
            break;
        }
    }
    line.extend_from_slice(&text[at..]);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_a_valid_json_string() {
        for value in [
            "plain",
            "quote\" back\\slash",
            "line\nbreak\u{7f}",
            "caf\u{e9}",
        ] {
            let mut line = Vec::new();
            append_text(&mut line, br#","x":""#, Some(value));
            let json = format!("{{{}}}", &String::from_utf8(line).expect("UTF-8")[1..]);
            let parsed: serde_json::Value = serde_json::from_str(&json).expect("JSON");
            assert_eq!(parsed["x"], value);
        }
    }

    #[test]
    fn numbers_are_formatted_as_by_std() {
        for value in [0, 7, 10, 999, 1_000, 65_536, u64::MAX] {
            let mut line = Vec::new();
            number(&mut line, br#","n":"#, value);
            assert_eq!(
                String::from_utf8(line).expect("ASCII"),
                format!(",\"n\":{value}")
            );
        }
        let mut line = Vec::new();
        millis(&mut line, br#","ms":"#, 12_034);
        assert_eq!(line, b",\"ms\":12.034");
    }

    #[test]
    fn address_is_truncated_to_its_network() {
        let cut = |text: &str| {
            logged_address(
                text.parse().expect("an address"),
                ClientAddressDetail::Network,
            )
        };
        assert_eq!(
            cut("203.0.113.77"),
            Some("203.0.113.0".parse().expect("an address"))
        );
        assert_eq!(
            cut("2001:db8:1:2::3"),
            Some("2001:db8:1::".parse().expect("an address"))
        );
        assert_eq!(
            logged_address(IpAddr::from([127, 0, 0, 1]), ClientAddressDetail::Off),
            None
        );
    }
}
