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
    /// The code with which a route with `report_only` would have rejected the request.
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
        let is_published = tail.admits();
        if !log.is_enabled() && !is_published {
            return;
        }
        LINE_BUFFER.with_borrow_mut(|line| {
            line.clear();
            self.render(line, now, log.client_address);
            if log.is_enabled() {
                log.append(line);
            }
            if is_published {
                tail.publish(line, details);
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
        append_text(line, br#","request_id":"#, Some(self.request_id));
        append_text(line, br#","method":"#, self.method);
        append_text(line, br#","path":"#, self.path);
        append_text(line, br#","route":"#, self.route);
        number(line, br#","status":"#, u64::from(self.status));
        append_text(line, br#","code":"#, Some(self.code));
        append_text(line, br#","cause":"#, self.cause);
        append_text(line, br#","report_only":"#, self.report_only);
        append_text(line, br#","kind":"#, self.kind);
        append_text(line, br#","issuer":"#, self.issuer);
        append_text(line, br#","subject":"#, self.subject);
        append_text(line, br#","caller_service":"#, self.caller_service);
        append_text(line, br#","upstream":"#, self.upstream);
        append_text(line, br#","upstream_address":"#, self.upstream_address);
        append_text(line, br#","encoding":"#, self.encoding);
        if self.attempts > 0 {
            number(line, br#","attempts":"#, u64::from(self.attempts));
        }
        millis(line, br#","duration_ms":"#, self.duration_us);
        if let Some(upstream_us) = self.upstream_us {
            millis(line, br#","upstream_ms":"#, upstream_us);
        }
        number(line, br#","request_bytes":"#, self.request_bytes);
        number(line, br#","response_bytes":"#, self.response_bytes);
        append_text(line, br#","protocol":"#, Some(self.protocol));
        append_text(line, br#","trace_id":"#, self.trace_id);
        if let Some(address) = self
            .client
            .and_then(|client| logged_address(client, client_address))
        {
            let _memory_only = write!(line, ",\"client\":\"{address}\"");
        }
    }
}

/// Returns the address in the configured detail; `None` if it is not logged.
fn logged_address(client: IpAddr, detail: ClientAddressDetail) -> Option<IpAddr> {
    match (detail, client) {
        (ClientAddressDetail::Off, _) => None,
        (ClientAddressDetail::Full, client) => Some(client),
        (ClientAddressDetail::Network, client) => Some(IpNetwork::of(client, 24, 48).address()),
    }
}

/// Appends a string member. `key` includes the characters before the value.
#[inline]
fn append_text(line: &mut Vec<u8>, key: &[u8], value: Option<&str>) {
    let Some(value) = value else { return };
    line.extend_from_slice(key);
    let _memory_only = serde_json::to_writer(line, value);
}

fn number(line: &mut Vec<u8>, key: &[u8], value: u64) {
    line.extend_from_slice(key);
    line.extend_from_slice(itoa::Buffer::new().format(value).as_bytes());
}

/// Appends microseconds as milliseconds with three decimals.
fn millis(line: &mut Vec<u8>, key: &[u8], micros: u64) {
    number(line, key, micros / 1000);
    line.push(b'.');
    thousandths(line, micros % 1000);
}

/// Appends a number below 1000 as three digits.
fn thousandths(line: &mut Vec<u8>, value: u64) {
    line.extend([value / 100, value / 10 % 10, value % 10].map(|digit| b'0' + (digit % 10) as u8));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn microseconds_are_milliseconds_with_three_decimals() {
        let mut line = Vec::new();
        millis(&mut line, br#","ms":"#, 12_034);
        assert_eq!(line, b",\"ms\":12.034");
    }

    #[test]
    fn address_is_truncated_to_its_network() {
        for (full, network) in [
            ("203.0.113.77", "203.0.113.0"),
            ("2001:db8:1:2::3", "2001:db8:1::"),
        ] {
            let address = full.parse().expect("an address");
            let logged = logged_address(address, ClientAddressDetail::Network);
            assert_eq!(logged.map(|it| it.to_string()).as_deref(), Some(network));
        }
    }
}
