//! Renewal: keeps the certificates of all names current.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use instant_acme::Error;
use postern_core::Clock;
use postern_core::backoff::{Backoff, jittered};
use postern_core::clock::Timestamp;
use postern_core::exit::Exit;
use tokio_util::sync::CancellationToken;

use crate::certificates::acme::client::AcmeHttpClient;
use crate::certificates::acme::issued;
use crate::certificates::acme::order::{bounded, open_account, order_certificate, other};
use crate::certificates::acme::store::{AcmeStore, FailureRecord, StoreFile, StoreLock};
use crate::certificates::slot::{CertificateSlot, LoadedCertificate};
use crate::config::AcmeConfig;
use crate::telemetry::certificate_metrics::CertificateMetrics;

/// Interval at which the store is checked for certificates of other gateways, and for names that
/// are due.
const POLL_INTERVAL: Duration = Duration::from_secs(1);
const ORDER_TIMEOUT: Duration = Duration::from_secs(300);
/// Delays after failed orders. Let's Encrypt permits five failed validations per name and hour.
const RETRY: Backoff = Backoff::new(Duration::from_secs(60), Duration::from_secs(6 * 3600));
/// The part of the renewal window, and of a delay, that is left out at random.
const JITTER: f64 = 0.2;

pub(crate) struct AcmeRenewal {
    config: AcmeConfig,
    store: Arc<AcmeStore>,
    client: AcmeHttpClient,
    names: Vec<RenewedName>,
    clock: Clock,
    metrics: Arc<CertificateMetrics>,
}

/// A name with the slots of all listeners that use its certificate.
struct RenewedName {
    domain: String,
    slots: Vec<Arc<CertificateSlot>>,
    /// The modification time of the file that was loaded last.
    loaded_at: Option<SystemTime>,
    /// The time of the renewal, in Unix seconds; due if there is no certificate.
    renew_at: i64,
    /// The time before which this gateway does not order again, in Unix seconds. The store has it
    /// as well, for all gateways, if it can be written.
    retry_at: i64,
}

impl AcmeRenewal {
    /// Prepares the renewal and loads the certificates of the store.
    ///
    /// # Errors
    /// Status 64 if a file that the configuration names is invalid.
    pub(crate) fn new(
        config: AcmeConfig,
        store: Arc<AcmeStore>,
        slots: Vec<(String, Arc<CertificateSlot>)>,
        clock: Clock,
        metrics: Arc<CertificateMetrics>,
    ) -> Result<Self, Exit> {
        let client = AcmeHttpClient::new(config.ca.as_deref())?;
        let mut names: Vec<RenewedName> = Vec::new();
        for (domain, slot) in slots {
            match names.iter_mut().find(|name| name.domain == domain) {
                Some(name) => name.slots.push(slot),
                None => names.push(RenewedName {
                    domain,
                    slots: vec![slot],
                    loaded_at: None,
                    renew_at: i64::MIN,
                    retry_at: i64::MIN,
                }),
            }
        }
        for name in &mut names {
            name.load(&store, &metrics, clock.now());
        }
        Ok(Self {
            config,
            store,
            client,
            names,
            clock,
            metrics,
        })
    }

    /// Renews certificates until `stop`.
    pub(crate) async fn run(mut self, stop: CancellationToken) {
        loop {
            tokio::select! {
                () = stop.cancelled() => return,
                () = Box::pin(self.poll()) => {}
            }
            tokio::select! {
                () = stop.cancelled() => return,
                () = tokio::time::sleep(POLL_INTERVAL) => {}
            }
        }
    }

    /// Loads the certificates of other gateways, and orders those that are due.
    async fn poll(&mut self) {
        for at in 0..self.names.len() {
            self.names[at].load(&self.store, &self.metrics, self.clock.now());
            if self.is_due(at) {
                match self.store.try_lock() {
                    Ok(Some(lock)) => self.renew(at, &lock).await,
                    // Another gateway is ordering.
                    Ok(None) => {}
                    Err(error) => tracing::error!(%error, "ACME store lock failed"),
                }
            }
        }
    }

    fn is_due(&self, at: usize) -> bool {
        let (name, now) = (&self.names[at], self.clock.now().unix_seconds());
        let failures = self.store.failures(&name.domain);
        name.renew_at.max(name.retry_at).max(failures.retry_at) <= now
    }

    /// Orders a certificate, unless another gateway has done so before this one had the lock.
    async fn renew(&mut self, at: usize, lock: &StoreLock) {
        self.names[at].load(&self.store, &self.metrics, self.clock.now());
        if !self.is_due(at) {
            return;
        }
        let domain = self.names[at].domain.clone();
        let ordering = tokio::time::timeout(ORDER_TIMEOUT, self.order(&domain, lock)).await;
        if let Err(error) = self.store.remove_challenges(lock) {
            tracing::warn!(%error, "ACME challenge removal failed");
        }
        match ordering {
            Ok(Ok(())) => {
                self.names[at].load(&self.store, &self.metrics, self.clock.now());
                tracing::info!(certificate = domain, "certificate obtained");
            }
            Ok(Err(error)) => self.note_failure(at, &bounded(&error)),
            Err(_) => self.note_failure(at, "the order timed out"),
        }
    }

    /// Orders a certificate and stores it, if it is what was ordered.
    async fn order(&self, domain: &str, lock: &StoreLock) -> Result<(), Error> {
        self.store.remove_challenges(lock).map_err(other)?;
        let account = open_account(&self.config, &self.store, self.client.clone()).await?;
        let pem = order_certificate(&account, &self.store, domain).await?;
        let now = self.clock.now().unix_seconds();
        issued::parse(domain, pem.as_bytes())
            .and_then(|loaded| issued::check_validity(&loaded.leaf, now))
            .map_err(other)?;
        let file = StoreFile::Certificate(domain);
        let stored = self.store.write(file, pem.as_bytes());
        let stored = stored.and_then(|()| self.store.remove(StoreFile::Failures(domain)));
        stored.map_err(other)
    }

    /// Stores the time of the next order, so that neither a restart nor another gateway orders
    /// before.
    fn note_failure(&mut self, at: usize, error: &str) {
        let domain = self.names[at].domain.as_str();
        let failures = self.store.failures(domain).failures.saturating_add(1);
        let delay = jittered(RETRY.delay(failures), JITTER).as_secs();
        let now = self.clock.now().unix_seconds();
        let record = FailureRecord {
            failures,
            retry_at: now.saturating_add(i64::try_from(delay).unwrap_or(i64::MAX)),
            error: error.to_owned(),
        };
        let failures_total = &self.metrics.renewal_failures;
        failures_total.with_label_values(&[domain]).inc();
        tracing::error!(
            certificate = domain,
            error,
            retry_s = delay,
            "certificate renewal failed"
        );
        let stored = serde_json::to_vec(&record).map_err(std::io::Error::from);
        if let Err(error) =
            stored.and_then(|stored| self.store.write(StoreFile::Failures(domain), &stored))
        {
            tracing::error!(%error, "ACME store write failed");
        }
        self.names[at].retry_at = record.retry_at;
    }
}

impl RenewedName {
    /// Loads the certificate of the store, if it has changed.
    fn load(&mut self, store: &AcmeStore, metrics: &CertificateMetrics, now: Timestamp) {
        let file = StoreFile::Certificate(&self.domain);
        let modified_at = store.modified_at(file);
        if modified_at.is_none() || modified_at == self.loaded_at {
            return;
        }
        self.loaded_at = modified_at;
        let pem = store.read(file).map_err(|error| error.to_string());
        let loaded =
            pem.and_then(|pem| issued::parse(&self.domain, pem.as_deref().unwrap_or_default()));
        let loaded = loaded.and_then(|loaded| {
            let mut slots = self.slots.iter();
            let kept = slots.find_map(|slot| slot.reason_to_keep(&loaded.leaf, now));
            kept.map_or(Ok(loaded), Err)
        });
        match loaded {
            Ok(loaded) => {
                self.renew_at = renewal_time(&loaded);
                for slot in &self.slots {
                    slot.install(loaded.clone(), metrics);
                }
            }
            // It is ordered again.
            Err(error) => {
                tracing::error!(
                    certificate = self.domain,
                    error,
                    "stored certificate rejected"
                );
            }
        }
    }
}

/// Returns the time of the renewal, in Unix seconds. The jitter spreads the load of the server, and
/// makes it improbable that all gateways try at once.
fn renewal_time(loaded: &LoadedCertificate) -> i64 {
    let window = u64::try_from(loaded.leaf.renewal_window()).unwrap_or_default();
    let window = jittered(Duration::from_secs(window), JITTER).as_secs();
    loaded
        .leaf
        .not_after
        .saturating_sub(i64::try_from(window).unwrap_or_default())
}
