use postern_common::Clock;
use postern_common::cache::Cache;
use postern_common::exit::Exit;

use super::{Breaker, Outlet, Outlets, Rate, Shares, Turnstile};
use crate::config::{OutletConfig, ProviderConfig};
use crate::provider::{Codes, Fcm, File, Http, Provider, Smtp, Twilio, WebPush};

impl Outlets {
    /// Builds the providers of the configuration, for channels with so many permits. None is called
    /// yet.
    ///
    /// # Errors
    /// Status 64 for what only building shows: a certificate, key or template that is not one.
    pub fn build(
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
