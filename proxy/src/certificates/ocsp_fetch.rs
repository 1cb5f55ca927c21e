//! Retrieval of OCSP responses from the responders that certificates name.

use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt;
use postern_common::Clock;
use postern_common::backoff::{Backoff, jittered};
use reqwest::header::CONTENT_TYPE;
use reqwest::redirect;
use tokio_util::sync::CancellationToken;

use crate::certificates::ocsp::{Staple, Subject};
use crate::certificates::server_tls::ServerTls;
use crate::certificates::slot::{CertificateSlot, LoadedCertificate};
use crate::telemetry::certificate_metrics::CertificateMetrics;

/// Interval at which certificates are checked for a response that is due.
const POLL_INTERVAL: Duration = Duration::from_secs(1);
/// Maximum time of a request.
const FETCH_TIMEOUT: Duration = Duration::from_secs(10);
/// Maximum length of a response.
const MAX_RESPONSE_BYTES: usize = 64 << 10;
/// Delays after failures.
const RETRY: Backoff = Backoff::new(Duration::from_secs(1), Duration::from_secs(3600));

/// What is known about the next request for a certificate.
#[derive(Debug, Default)]
struct FetchState {
    /// The leaf that the state is about; another one is requested at once.
    leaf: Vec<u8>,
    failures: u32,
    /// The time of the next request, in Unix seconds.
    due: i64,
}

/// Keeps the responses of the listeners current until `stop`.
pub(crate) async fn fetch_staples(
    listeners: Vec<Arc<ServerTls>>,
    metrics: Arc<CertificateMetrics>,
    clock: Clock,
    stop: CancellationToken,
) {
    let slots: Vec<_> = listeners
        .iter()
        .flat_map(|listener| listener.fetched_slots())
        .collect();
    if slots.is_empty() {
        return;
    }
    let client = reqwest::Client::builder()
        .redirect(redirect::Policy::none())
        .no_proxy()
        // Responses are signed, and responders are named with http: (RFC 5019 section 5).
        .tls_certs_only([])
        .timeout(FETCH_TIMEOUT)
        .build();
    let client = match client {
        Ok(client) => client,
        Err(error) => {
            tracing::error!(%error, "OCSP client unavailable");
            return;
        }
    };
    let mut states: Vec<FetchState> = slots.iter().map(|_| FetchState::default()).collect();
    loop {
        let round = async {
            for ((slot, always), state) in slots.iter().zip(&mut states) {
                poll_slot(&client, slot, *always, state, &metrics, &clock).await;
            }
        };
        tokio::select! {
            () = stop.cancelled() => return,
            () = round => {}
        }
        tokio::select! {
            () = stop.cancelled() => return,
            () = tokio::time::sleep(POLL_INTERVAL) => {}
        }
    }
}

/// Requests a response if one is due. `always` is false if only certificates that require stapling
/// are to have one.
async fn poll_slot(
    client: &reqwest::Client,
    slot: &CertificateSlot,
    always: bool,
    state: &mut FetchState,
    metrics: &CertificateMetrics,
    clock: &Clock,
) {
    let Some(loaded) = slot.loaded().filter(|it| always || it.leaf.must_staple) else {
        return;
    };
    let leaf = loaded.certified.cert.first().map(|leaf| leaf.to_vec());
    if leaf.as_ref() != Some(&state.leaf) {
        *state = FetchState {
            leaf: leaf.unwrap_or_default(),
            ..FetchState::default()
        };
    }
    if clock.now().unix_seconds() < state.due {
        return;
    }
    let fetched = fetch(client, &loaded, clock).await;
    let now = clock.now().unix_seconds();
    match fetched {
        Ok(staple) => {
            state.failures = 0;
            state.due = next_fetch(&staple, now);
            slot.set_staple(staple, metrics);
        }
        Err(error) => {
            state.failures += 1;
            let delay = jittered(RETRY.delay(state.failures), 0.2).as_secs();
            state.due = now.saturating_add(i64::try_from(delay).unwrap_or(i64::MAX));
            metrics.note_fetch_failure(&slot.label());
            tracing::warn!(
                certificate = slot.label(),
                error,
                retry_s = delay,
                "OCSP fetch failed"
            );
        }
    }
}

/// Returns the time of the next request: half of the remaining validity, at least a minute.
fn next_fetch(staple: &Staple, now: i64) -> i64 {
    now + ((staple.next_update - now) / 2).max(60)
}

async fn fetch(
    client: &reqwest::Client,
    loaded: &LoadedCertificate,
    clock: &Clock,
) -> Result<Staple, String> {
    let url = loaded.leaf.ocsp_url.as_deref();
    let url = url.ok_or("the certificate names no OCSP responder")?;
    let certificate = loaded.certified.cert.first().ok_or("no certificate")?;
    let request = Subject::new(certificate, loaded.issuer())
        .and_then(|subject| subject.request())
        .map_err(|error| error.to_string())?;
    let response = client
        .post(url)
        .header(CONTENT_TYPE, "application/ocsp-request")
        .body(request)
        .send()
        .await
        .map_err(|error| error.without_url().to_string())?;
    if !response.status().is_success() {
        return Err(format!("{url}: status {}", response.status().as_u16()));
    }
    let (mut body, mut parts) = (Vec::new(), response.bytes_stream());
    while let Some(part) = parts.next().await {
        body.extend_from_slice(&part.map_err(|error| error.without_url().to_string())?);
        if body.len() > MAX_RESPONSE_BYTES {
            return Err(format!("{url}: more than {MAX_RESPONSE_BYTES} bytes"));
        }
    }
    let subject = Subject::new(certificate, loaded.issuer());
    subject
        .and_then(|subject| subject.verify(&body, clock.now().unix_seconds()))
        .map_err(|error| format!("{url}: the response {error}"))
}
