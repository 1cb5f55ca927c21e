//! Names and values of header fields that the gateway controls.
//!
//! Names are compared with case folded and with `_` and `.` read as `-`, because some upstreams
//! fold these characters (CGI, WSGI, PHP).

use bytes::BytesMut;
use http::header::{CONNECTION, CONTENT_LENGTH, TE, TRANSFER_ENCODING, UPGRADE, VARY};
use http::{HeaderMap, HeaderName, Version};
use pingora_core::Result;
use pingora_http::{RequestHeader, ResponseHeader};

/// Field names, folded, that clients must not send: identity, client address, routing information and
/// method of this gateway, or of other proxies that upstreams may trust.
const RESERVED_NAMES: [&str; 26] = [
    "cf-connecting-ip",
    "cf-connecting-ipv6",
    "client-ip",
    "fastly-client-ip",
    "forwarded",
    "front-end-https",
    "proxy",
    "remote-user",
    "traceparent",
    "true-client-ip",
    "x-client-ip",
    "x-cluster-client-ip",
    "x-forwarded",
    "x-host",
    "x-http-method",
    "x-http-method-override",
    "x-method-override",
    "x-original-forwarded-for",
    "x-original-host",
    "x-original-uri",
    "x-original-url",
    "x-real-ip",
    "x-request-id",
    "x-rewrite-url",
    "x-scheme",
    "x-url-scheme",
];

/// Reserved names, beside `x-postern-`, of the fields that the gateway fills, or that would contradict
/// them.
const FILLED_NAMES: [&str; 6] = [
    "forwarded",
    "traceparent",
    "x-forwarded-for",
    "x-forwarded-host",
    "x-forwarded-proto",
    "x-request-id",
];

/// The field that counts gateways on the way of a request (RFC 8586), and the name of this one.
pub static CDN_LOOP: HeaderName = HeaderName::from_static("cdn-loop");
/// The name of the gateway in `CDN-Loop`.
pub const CDN_ID: &str = "postern";

/// Gateways that a request may pass, as in a chain of them. More are a loop.
const MAX_HOPS: usize = 10;

/// Returns whether a request has passed so many gateways that an upstream of one leads back to it.
pub fn is_looping(headers: &HeaderMap) -> bool {
    let values = headers.get_all(&CDN_LOOP).iter();
    let ids = values.flat_map(|value| value.as_bytes().split(|byte| *byte == b','));
    let own = ids.filter(|id| id.trim_ascii() == CDN_ID.as_bytes());
    own.count() >= MAX_HOPS
}

/// Returns whether a field applies to one connection only and is not forwarded (RFC 9110 section
/// 7.6.1). Other fields that the `Connection` of a request names are not in its canonical head.
#[must_use]
pub fn is_hop_by_hop(name: &str) -> bool {
    matches!(
        name,
        "connection"
            | "http2-settings"
            | "keep-alive"
            | "proxy-authenticate"
            | "proxy-authorization"
            | "proxy-connection"
            | "te"
            | "trailer"
            | "transfer-encoding"
            | "upgrade"
    )
}

/// Returns the field names that `Connection` lists, which are hop-by-hop as well.
pub fn connection_options(headers: &HeaderMap) -> Vec<HeaderName> {
    let values = headers.get_all(CONNECTION).iter();
    let options = values.flat_map(|value| options(value.as_bytes()));
    options
        .filter_map(|option| HeaderName::from_bytes(option).ok())
        .collect()
}

/// Returns whether the client accepts trailers. RFC 9113 section 8.2.2 allows no other value of
/// `TE`.
pub fn accepts_trailers(head: &RequestHeader) -> bool {
    head.version == Version::HTTP_2 && head.headers.get(TE).is_some_and(|te| te == "trailers")
}

/// Returns whether a request asks for a WebSocket upgrade (RFC 6455 section 4.1). Others, those with
/// a body among them, are forwarded without an upgrade (RFC 9110 section 7.8).
pub fn is_websocket_upgrade(request: &RequestHeader) -> bool {
    let headers = &request.headers;
    let has_body = headers.contains_key(TRANSFER_ENCODING)
        || headers
            .get(CONTENT_LENGTH)
            .is_some_and(|length| length != "0");
    request.version == Version::HTTP_11 && !has_body && names_websocket(headers)
}

/// Returns whether there is exactly one `Upgrade` field and it names the WebSocket protocol only.
pub fn names_websocket(headers: &HeaderMap) -> bool {
    let mut protocols = headers.get_all(UPGRADE).iter();
    let first = protocols.next();
    first.is_some_and(|protocol| {
        protocol
            .as_bytes()
            .trim_ascii()
            .eq_ignore_ascii_case(b"websocket")
    }) && protocols.next().is_none()
}

/// Beginnings of the names of schemes that authenticate a connection: each later request on it is
/// one of the same user (RFC 4559 section 6 on Negotiate; NTLM; CredSSP and Kerberos of WinRM).
const CONNECTION_SCHEMES: [&[u8]; 4] = [b"nego", b"ntlm", b"cred", b"kerb"];

/// Returns whether a field `name`, which contains credentials or challenges, names a scheme that
/// authenticates a connection instead of a request.
pub fn authenticates_connection(headers: &HeaderMap, name: HeaderName) -> bool {
    let values = headers.get_all(name).into_iter();
    let mut schemes = values.flat_map(|value| value.as_bytes().split(|byte| *byte == b','));
    schemes.any(|scheme| {
        let start = scheme.trim_ascii_start().get(..4);
        start.is_some_and(|start| {
            let mut known = CONNECTION_SCHEMES.iter();
            known.any(|known| start.eq_ignore_ascii_case(known))
        })
    })
}

/// Returns whether a field is an identity header of the gateway, which upstreams must not set.
pub fn is_identity_header(name: &str) -> bool {
    name.starts_with("x-postern-")
}

/// Returns whether a response field discloses the software of a server (RFC 9110 section 10.2.4).
pub fn is_server_header(name: &str) -> bool {
    matches!(
        name,
        "server"
            | "x-aspnet-version"
            | "x-aspnetmvc-version"
            | "x-generator"
            | "x-powered-by"
            | "x-runtime"
    )
}

/// Names of fields that frame a message. Some upstreams, such as uWSGI, read them in any spelling.
const FRAMING_NAMES: [&str; 2] = ["content-length", "transfer-encoding"];

/// Prefixes of reserved names, folded.
const RESERVED_PREFIXES: [&str; 4] = ["x-postern-", "x-forwarded-", "x-remote-", "x-ssl-client-"];

/// Returns whether a byte may occur in an HTTP token (RFC 9110 section 5.6.2).
const fn is_token_byte(byte: u8) -> bool {
    byte.is_ascii_alphanumeric()
        || matches!(
            byte,
            b'!' | b'#'
                | b'$'
                | b'%'
                | b'&'
                | b'\''
                | b'*'
                | b'+'
                | b'-'
                | b'.'
                | b'^'
                | b'_'
                | b'`'
                | b'|'
                | b'~'
        )
}

/// Returns whether a name or method is an HTTP token. Uses a lookup table, because every field of
/// every head is checked.
#[must_use]
pub fn is_token(text: &[u8]) -> bool {
    static IS_TOKEN_BYTE: [bool; 256] = {
        let mut table = [false; 256];
        let mut byte = 0;
        while byte < 256 {
            table[byte] = is_token_byte(byte as u8);
            byte += 1;
        }
        table
    };
    !text.is_empty() && text.iter().all(|byte| IS_TOKEN_BYTE[usize::from(*byte)])
}

/// Returns whether the value contains a control character that field values must not contain. All
/// bytes are examined even after a match, so that the compiler can vectorize the loop (16 bytes at
/// a time).
pub fn contains_control_character(value: &[u8]) -> bool {
    value.iter().fold(false, |found, byte| {
        found | ((*byte < 0x20) & (*byte != b'\t')) | (*byte == 0x7f)
    })
}

/// Returns whether only the gateway may set a field of this name, or the name is another spelling of
/// one that frames the message.
#[must_use]
pub fn is_reserved(name: &str) -> bool {
    let is_respelled =
        |framing: &&str| is_same_folded(name, framing) && !name.eq_ignore_ascii_case(framing);
    if FRAMING_NAMES.iter().any(is_respelled) {
        return true;
    }
    let first = name.bytes().next();
    if !first.is_some_and(|first| b"cxfprt".contains(&first.to_ascii_lowercase())) {
        return false;
    }
    let starts_with = |prefix: &&str| {
        let start = name.get(..prefix.len());
        start.is_some_and(|start| is_same_folded(start, prefix))
    };
    let is_same = |reserved: &&str| is_same_folded(name, reserved);
    RESERVED_PREFIXES.iter().any(starts_with) || RESERVED_NAMES.iter().any(is_same)
}

/// Returns a name in lower case with `_` and `.` read as `-`.
pub fn folded(name: &str) -> String {
    name.to_ascii_lowercase().replace(['_', '.'], "-")
}

/// Returns whether the gateway fills a field of this name itself. Other reserved fields may be set by
/// the configuration: those of a client have been removed before.
#[must_use]
pub fn is_filled(name: &str) -> bool {
    let start = name.get(..RESERVED_PREFIXES[0].len());
    start.is_some_and(|start| is_same_folded(start, RESERVED_PREFIXES[0]))
        || FILLED_NAMES
            .iter()
            .any(|filled| is_same_folded(name, filled))
}

/// Returns whether two names are equal to upstreams that fold case, `_` and `.`.
#[must_use]
pub fn is_same_folded<N, O>(name: &N, other: &O) -> bool
where
    N: AsRef<[u8]> + ?Sized,
    O: AsRef<[u8]> + ?Sized,
{
    let (name, other) = (name.as_ref(), other.as_ref());
    let fold = |byte: &u8| match byte {
        b'_' | b'.' => b'-',
        byte => byte.to_ascii_lowercase(),
    };
    name.len() == other.len() && name.iter().map(fold).eq(other.iter().map(fold))
}

/// Removes the fields with these names.
pub fn strip(headers: &mut HeaderMap, is_removed: impl Fn(&str) -> bool) {
    let removed: Vec<HeaderName> = headers
        .keys()
        .filter(|name| is_removed(name.as_str()))
        .cloned()
        .collect();
    for name in removed {
        headers.remove(name);
    }
}

/// Adds a name to `Vary`, unless it is listed already.
pub fn add_vary(response: &mut ResponseHeader, name: &'static str) -> Result<()> {
    match has_member(&response.headers, VARY, name) || has_member(&response.headers, VARY, "*") {
        true => Ok(()),
        false => response.append_header(VARY, name).map(|_| ()),
    }
}

/// Appends a field line to a message head.
#[inline]
pub fn append_field(head: &mut BytesMut, name: &str, value: &[u8]) {
    for part in [name.as_bytes(), b": ", value, b"\r\n"] {
        head.extend_from_slice(part);
    }
}

/// Maximum number of options in `Connection`: Pingora refuses more, without an answer.
pub(crate) const MAX_OPTIONS: usize = 9;

/// Returns the members of a list, such as the options in a value of `Connection`.
#[inline]
pub(crate) fn options(value: &[u8]) -> impl Iterator<Item = &[u8]> {
    let options = value.split(|byte| *byte == b',').map(<[u8]>::trim_ascii);
    options.filter(|option| !option.is_empty())
}

/// Returns whether the list in the fields `name` has a member, in any case.
pub fn has_member(headers: &HeaderMap, name: HeaderName, member: &str) -> bool {
    let values = headers.get_all(name).into_iter();
    let mut members = values.flat_map(|value| options(value.as_bytes()));
    members.any(|one| one.eq_ignore_ascii_case(member.as_bytes()))
}

/// Returns whether a `Connection` option concerns the connection, and does not name a field.
pub(crate) fn is_known_option(option: &[u8]) -> bool {
    [&b"keep-alive"[..], b"close", b"upgrade"]
        .iter()
        .any(|known| option.eq_ignore_ascii_case(known))
}

/// Returns whether `Connection` may name this field, which is then not forwarded (RFC 9110 section
/// 7.6.1). The gateway needs the others: a message without them would be another one.
pub(crate) fn may_be_named(option: &[u8]) -> bool {
    const NEEDED: [&str; 5] = [
        "authorization",
        "content-length",
        "cookie",
        "host",
        "transfer-encoding",
    ];
    let Ok(name) = std::str::from_utf8(option) else {
        return false;
    };
    let is_needed = |needed: &&str| is_same_folded(name, needed);
    is_token(option) && !is_reserved(name) && !NEEDED.iter().any(is_needed)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn trusted_proxy_fields_are_reserved() {
        let names = "X-Forwarded-User x_forwarded_email Remote-User remote_user X-Original-URL \
            X-Rewrite-URL True-Client-IP Client-IP CF-Connecting-IP X-Client-IP \
            X_Cluster_Client_IP X-Forwarded X-Host X-HTTP-Method-Override X-Original-Host \
            X-Original-URI X-Real-IP X-Original-Forwarded-For X-Scheme X-URL-Scheme \
            Front-End-Https X-Remote-IP X_Remote_Addr X-Remote-User X-SSL-Client-Verify \
            X_SSL_Client_DN Forwarded Proxy traceparent X-Request-Id Content_Length \
            transfer.encoding";
        for name in names.split(' ') {
            assert!(is_reserved(name), "{name}");
        }
    }

    #[test]
    fn other_fields_are_not_reserved() {
        let names = "authorization Content-Length transfer-encoding x-postern content-type x-custom \
            traceparents";
        for name in names.split(' ') {
            assert!(!is_reserved(name), "{name}");
        }
    }

    fn spelling(name: &'static str) -> impl Strategy<Value = String> {
        proptest::collection::vec((any::<bool>(), 0..3_usize), name.len()).prop_map(
            move |choices| {
                name.chars()
                    .zip(choices)
                    .map(|(letter, (upper, dash))| match letter {
                        '-' => ['-', '_', '.'][dash],
                        letter if upper => letter.to_ascii_uppercase(),
                        letter => letter,
                    })
                    .collect()
            },
        )
    }

    proptest! {
        #[test]
        fn every_spelling_is_reserved(
            kind in spelling("x-postern-kind"),
            made_up in spelling("x-postern-anything"),
            forwarded in spelling("x-forwarded-for"),
        ) {
            prop_assert!(is_reserved(&kind), "{}", kind);
            prop_assert!(is_reserved(&made_up), "{}", made_up);
            prop_assert!(is_reserved(&forwarded), "{}", forwarded);
        }
    }
}
