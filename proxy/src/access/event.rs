use std::cell::RefCell;
use std::io::Write;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use postern_common::clock::Timestamp;

use super::AccessLog;
use crate::config::ClientAddress;

/// What one event says. Text that a client chose (method, path) has been checked to be visible ASCII, or is
/// left out.
#[derive(Debug, Default)]
pub(crate) struct Event<'a> {
    pub(crate) request_id: &'a str,
    pub(crate) method: Option<&'a str>,
    /// The canonical path without the query; never the path of a refused target.
    pub(crate) path: Option<&'a str>,
    /// The template of the route.
    pub(crate) route: Option<&'a str>,
    pub(crate) status: u16,
    /// `ok`, or the code of the refusal: the same as in body and metric.
    pub(crate) code: &'a str,
    /// What an audit-only policy would have refused with.
    pub(crate) audit: Option<&'a str>,
    pub(crate) kind: Option<&'a str>,
    pub(crate) subject: Option<&'a str>,
    pub(crate) service: Option<&'a str>,
    pub(crate) upstream: Option<&'a str>,
    pub(crate) attempts: u32,
    pub(crate) duration_us: u64,
    pub(crate) upstream_us: Option<u64>,
    pub(crate) request_bytes: u64,
    pub(crate) response_bytes: u64,
    pub(crate) protocol: &'a str,
    pub(crate) trace_id: Option<&'a str>,
    pub(crate) client: Option<IpAddr>,
}

thread_local! {
    /// The line that is being built, and the second whose text is at hand.
    static LINE: RefCell<(Vec<u8>, i64, String)> = const { RefCell::new((Vec::new(), i64::MIN, String::new())) };
}

impl Event<'_> {
    /// Builds the line in a buffer of this thread and appends it.
    pub(crate) fn write(&self, log: &AccessLog, now: Timestamp) {
        if !log.is_on() {
            return;
        }
        LINE.with_borrow_mut(|(line, second, text)| {
            if *second != now.unix_seconds() {
                *second = now.unix_seconds();
                *text = Timestamp::from_unix_seconds(*second).to_string();
                text.truncate(text.len().saturating_sub(4));
            }
            line.clear();
            let millis = now.0.rem_euclid(1000);
            let _memory_only = write!(line, "{{\"time\":\"{text}{millis:03}Z\"");
            self.fields(line, log.client_address);
            line.extend_from_slice(b"}\n");
            log.append(line);
        });
    }

    fn fields(&self, line: &mut Vec<u8>, client_address: ClientAddress) {
        text(line, "requestId", Some(self.request_id));
        text(line, "method", self.method);
        text(line, "path", self.path);
        text(line, "route", self.route);
        number(line, "status", u64::from(self.status));
        text(line, "code", Some(self.code));
        text(line, "audit", self.audit);
        text(line, "kind", self.kind);
        text(line, "subject", self.subject);
        text(line, "service", self.service);
        text(line, "upstream", self.upstream);
        if self.attempts > 1 {
            number(line, "attempts", u64::from(self.attempts));
        }
        millis(line, "durationMs", self.duration_us);
        if let Some(upstream_us) = self.upstream_us {
            millis(line, "upstreamMs", upstream_us);
        }
        number(line, "requestBytes", self.request_bytes);
        number(line, "responseBytes", self.response_bytes);
        text(line, "protocol", Some(self.protocol));
        text(line, "traceId", self.trace_id);
        if let Some(address) = self.client.and_then(|client| shown(client, client_address)) {
            let _memory_only = write!(line, ",\"client\":\"{address}\"");
        }
    }
}

fn shown(client: IpAddr, how: ClientAddress) -> Option<IpAddr> {
    match (how, client) {
        (ClientAddress::Off, _) => None,
        (ClientAddress::Full, client) => Some(client),
        (ClientAddress::Network, IpAddr::V4(client)) => {
            Some(Ipv4Addr::from_bits(client.to_bits() & 0xffff_ff00).into())
        }
        (ClientAddress::Network, IpAddr::V6(client)) => {
            Some(Ipv6Addr::from_bits(client.to_bits() & (u128::MAX << 80)).into())
        }
    }
}

fn text(line: &mut Vec<u8>, name: &str, value: Option<&str>) {
    let Some(value) = value else { return };
    line.extend_from_slice(b",\"");
    line.extend_from_slice(name.as_bytes());
    line.extend_from_slice(b"\":\"");
    if value.bytes().all(|byte| matches!(byte, 0x20..=0x7e) && byte != b'"' && byte != b'\\') {
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

fn number(line: &mut Vec<u8>, name: &str, value: u64) {
    let _memory_only = write!(line, ",\"{name}\":{value}");
}

/// Microseconds, written as milliseconds with three digits.
fn millis(line: &mut Vec<u8>, name: &str, micros: u64) {
    let _memory_only = write!(line, ",\"{name}\":{}.{:03}", micros / 1000, micros % 1000);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_always_a_json_string() {
        for value in ["plain", "quote\" back\\slash", "line\nbreak\u{7f}", "caf\u{e9}"] {
            let mut line = Vec::new();
            text(&mut line, "x", Some(value));
            let json = format!("{{{}}}", &String::from_utf8(line).expect("UTF-8")[1..]);
            let parsed: serde_json::Value = serde_json::from_str(&json).expect("JSON");
            assert_eq!(parsed["x"], value);
        }
    }

    #[test]
    fn an_address_is_cut_to_its_network() {
        let cut = |text: &str| shown(text.parse().expect("an address"), ClientAddress::Network);
        assert_eq!(cut("203.0.113.77"), Some("203.0.113.0".parse().expect("an address")));
        assert_eq!(cut("2001:db8:1:2::3"), Some("2001:db8:1::".parse().expect("an address")));
        assert_eq!(shown(IpAddr::V4(Ipv4Addr::LOCALHOST), ClientAddress::Off), None);
    }
}
