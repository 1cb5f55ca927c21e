//! Replacing a key: what an older key of the ring sealed is sealed again under the newest, so that
//! the older one can be taken out of the ring. Done once at every start, beside the service.

use postern_common::Problem;

use super::Social;
use crate::auth::Auth;
use crate::store::StoreError;

/// How many are sealed again at once.
const BATCH: i64 = 100;

// === impl Auth ===

impl Auth {
    /// Seals every provider's refresh token again that an older key sealed; returns how many. One
    /// that no key of the ring opens is left as it is, and told.
    pub(crate) async fn reseal_provider_tokens(
        &self,
        social: &Social,
    ) -> Result<usize, StoreError> {
        let ring = &social.config.ring;
        let newest = ring.newest();
        let (mut resealed, mut lost, mut after) = (0, 0, (String::new(), String::new()));
        loop {
            let batch = self.store.sealed_tokens(&after, BATCH).await?;
            let Some(last) = batch.last() else { break };
            after = (last.issuer.clone(), last.subject.clone());
            for row in batch.iter().filter(|row| !row.sealed.starts_with(&newest)) {
                let context = [
                    social.config.provider.as_str(),
                    &row.issuer,
                    &row.subject,
                    &row.user_id,
                ];
                let Some(plain) = ring.open(&context, &row.sealed) else {
                    lost += 1;
                    continue;
                };
                let sealed = ring.seal(&context, &plain);
                resealed += usize::from(
                    self.store
                        .replace_token(row, &sealed, self.clock.now())
                        .await?,
                );
            }
        }
        if resealed + lost > 0 {
            tracing::info!(
                resealed,
                lost,
                "refresh tokens of the social provider are under the newest key"
            );
        }
        Ok(resealed)
    }

    /// The same, for whoever only wants it done.
    pub(crate) async fn reseal(&self) {
        let Some(social) = &self.social else { return };
        if let Err(error) = self.reseal_provider_tokens(social).await {
            let code = Problem::from(error).code();
            tracing::warn!(
                code = code.as_str(),
                "refresh tokens could not be sealed again; the next start tries"
            );
        }
    }
}
