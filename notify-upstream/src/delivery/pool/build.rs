use std::path::PathBuf;

use postern_common::Clock;
use postern_common::cache::Cache;
use postern_common::exit::Exit;

use super::{Breaker, Outlet, Outlets, Rate, Shares, Turnstile};
use crate::delivery::provider::{
    Codes, Fcm, FcmAccount, File, Http, HttpConfig, Provider, Smtp, SmtpConfig, Twilio,
    TwilioConfig, VapidKey, WebPush,
};
use crate::notification::Channel;

/// A `[[provider]]` table.
#[derive(Debug)]
pub(crate) struct OutletConfig {
    /// Name in events and metrics: 1 to 32 of `a-z 0-9 - _`.
    pub(crate) name: String,
    /// The channel that it serves.
    pub(crate) channel: Channel,
    /// Load balancing weight among the providers of the channel. Default 1.
    pub(crate) weight: u32,
    /// Maximum number of concurrent calls. Default 64.
    pub(crate) concurrency: usize,
    /// Maximum number of calls per second over all replicas, evenly spaced; the highest priority
    /// goes first. Default unlimited.
    pub(crate) rate: Option<u64>,
    pub(crate) provider: ProviderConfig,
}

/// Type and settings of a provider.
#[derive(Debug)]
pub(crate) enum ProviderConfig {
    /// A mail server.
    Smtp(Box<SmtpConfig>),
    /// Twilio's API.
    Twilio(TwilioConfig),
    /// A generic HTTP API.
    Http(HttpConfig),
    /// Firebase Cloud Messaging.
    Fcm(FcmAccount),
    /// Push services of browsers.
    WebPush(VapidKey),
    /// A folder, for development.
    File(PathBuf),
    /// Discards messages, for benchmarks. Only configured explicitly with `kind = "null"`.
    Null,
}

impl Outlets {
    /// Builds the providers of the configuration, for channels with so many permits. None is called
    /// yet.
    ///
    /// # Errors
    /// Status 64 for what only building shows: a certificate, key or template that is not one.
    pub(crate) fn build(
        configured: Vec<OutletConfig>,
        permits: [usize; 3],
        cache: &Cache,
        clock: &Clock,
    ) -> Result<Self, Exit> {
        let codes = Codes::shipped();
        let mut channels: [Vec<Outlet>; 3] = Default::default();
        for OutletConfig {
            name,
            channel,
            weight,
            concurrency,
            rate,
            provider,
        } in configured
        {
            let provider = build(provider, cache, clock, &codes)
                .map_err(|error| Exit::usage(format!("provider `{name}`: {error}")))?;
            let rate = rate.map(|rate| Rate::new(cache.clone(), clock.clone(), &name, rate));
            channels[channel.index()].push(Outlet {
                name,
                provider,
                weight,
                turnstile: Turnstile::new(concurrency, rate),
                shares: Shares::new(concurrency.min(permits[channel.index()])),
                breaker: Breaker::new(clock.clone()),
            });
        }
        Ok(Self::new(channels, codes))
    }
}

fn build(
    config: ProviderConfig,
    cache: &Cache,
    clock: &Clock,
    codes: &Codes,
) -> Result<Provider, String> {
    let codes = codes.clone();
    Ok(match config {
        ProviderConfig::Smtp(config) => Provider::Smtp(Box::new(Smtp::new(*config, codes)?)),
        ProviderConfig::Twilio(config) => Provider::Twilio(Box::new(Twilio::new(config, codes)?)),
        ProviderConfig::Http(config) => Provider::Http(Box::new(Http::new(config, codes)?)),
        ProviderConfig::Fcm(account) => Provider::Fcm(Box::new(Fcm::new(
            account,
            cache.clone(),
            clock.clone(),
            codes,
        )?)),
        ProviderConfig::WebPush(key) => {
            Provider::WebPush(Box::new(WebPush::new(key, clock.clone(), codes)?))
        }
        ProviderConfig::File(folder) => Provider::File(File::new(folder)),
        ProviderConfig::Null => Provider::Null,
    })
}
