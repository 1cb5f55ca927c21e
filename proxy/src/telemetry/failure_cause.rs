//! The causes of failed requests and upstream attempts.

use strum::IntoStaticStr;

/// The cause of a failed request or upstream attempt: `cause` in the access log and in
/// `postern_proxy_upstream_failures_total`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, IntoStaticStr)]
#[strum(serialize_all = "snake_case")]
pub(crate) enum FailureCause {
    /// The upstream refused the connection.
    ConnectRefused,
    /// No connection, with its TLS handshake, within `connect_timeout`.
    ConnectTimeout,
    /// The connection could not be opened for another reason, such as no route to the host.
    ConnectFailed,
    /// The TLS handshake failed, for example because of the certificate.
    TlsFailed,
    /// No address of the upstream is available, or all are at capacity.
    NoEndpoint,
    /// No data of the response within `read_timeout`.
    ResponseTimeout,
    /// The upstream accepted no data within `write_timeout`.
    WriteTimeout,
    /// The upstream closed or reset the connection before the end of its response.
    Reset,
    /// The response is malformed, or of a protocol that the upstream should not speak.
    InvalidResponse,
    /// The upstream answered with 502, 503 or 504, which counts as a failed attempt.
    UpstreamStatus,
    /// The deadline of the route passed.
    Deadline,
    /// The client closed the connection or reset the stream.
    ClientDisconnected,
    /// The client sent or read below the minimum rate, or a tunnel was idle.
    ClientTimeout,
    /// The request body exceeds `body_bytes`.
    BodyTooLarge,
    /// The framing of the request body is malformed.
    InvalidRequest,
    /// The memory for responses to slow readers is exhausted.
    BufferExhausted,
    /// The token of a tunnel expired.
    TokenExpired,
    /// A defect of the gateway.
    Internal,
}

impl FailureCause {
    /// Returns the name in logs and metrics.
    pub(crate) fn as_str(self) -> &'static str {
        self.into()
    }
}
