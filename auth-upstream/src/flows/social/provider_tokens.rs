//! The provider's refresh tokens, stored sealed, and their re-encryption after a key rotation.

use std::sync::Arc;

use postern_core::Problem;
use postern_core::token::oidc::IdToken;

use super::super::FlowParts;
use super::SocialError;
use crate::config::SocialConfig;
use crate::store::{SealedProviderToken, StoreError};

/// The number of tokens that are read at once.
const RESEAL_BATCH_SIZE: i64 = 100;

/// Stores the provider's refresh tokens.
#[derive(Clone, Debug)]
pub(crate) struct ProviderTokens {
    pub(crate) parts: Arc<FlowParts>,
    pub(super) config: Arc<SocialConfig>,
}

// === impl ProviderTokens ===

impl ProviderTokens {
    /// Stores a refresh token, sealed to provider, issuer, subject and user.
    pub(super) async fn save(
        &self,
        id: &IdToken,
        user_id: &str,
        token: &str,
    ) -> Result<(), SocialError> {
        let context = [self.name(&id.issuer), &id.issuer, &id.subject, user_id];
        let sealed = self.config.key_ring.seal(&context, token.as_bytes());
        let saved = self
            .store
            .save_provider_token(&id.issuer, &id.subject, &sealed)
            .await;
        Ok(saved.map_err(Problem::from)?)
    }

    /// Returns the name of the provider of an issuer; an empty one if it is not configured any more.
    fn name(&self, issuer: &str) -> &str {
        let provider = self.config.by_issuer(issuer);
        provider.map_or("", |provider| &provider.name)
    }

    /// Seals all tokens with the newest key, so that older keys can be removed from the
    /// configuration. Runs once after each start; logs failures.
    pub(crate) async fn reseal(&self) {
        if let Err(error) = self.reseal_all().await {
            let code = Problem::from(error).code();
            tracing::warn!(
                code = code.as_str(),
                "provider tokens not resealed, the next start tries again"
            );
        }
    }

    /// Seals the tokens with the newest key that an older one sealed, and returns their number.
    /// Tokens that no key opens are left unchanged and counted in the log.
    pub(crate) async fn reseal_all(&self) -> Result<usize, StoreError> {
        let newest = self.config.key_ring.newest_prefix();
        let (mut resealed, mut unreadable) = (0, 0);
        let mut after = (String::new(), String::new());
        loop {
            let batch = self
                .store
                .provider_tokens(&after, RESEAL_BATCH_SIZE)
                .await?;
            let Some(last) = batch.last() else { break };
            after = (last.issuer.clone(), last.subject.clone());
            for token in batch
                .iter()
                .filter(|token| !token.sealed.starts_with(&newest))
            {
                match self.reseal_one(token).await? {
                    Some(is_replaced) => resealed += usize::from(is_replaced),
                    None => unreadable += 1,
                }
            }
        }
        if resealed + unreadable > 0 {
            tracing::info!(resealed, unreadable, "provider tokens resealed");
        }
        Ok(resealed)
    }

    /// Returns whether the token was replaced, or `None` if no key opens it.
    async fn reseal_one(&self, token: &SealedProviderToken) -> Result<Option<bool>, StoreError> {
        let key_ring = &self.config.key_ring;
        let context = [
            self.name(&token.issuer),
            &token.issuer,
            &token.subject,
            &token.user_id,
        ];
        let Some(plain) = key_ring.open(&context, &token.sealed) else {
            return Ok(None);
        };
        let sealed = key_ring.seal(&context, &plain);
        let is_replaced = self.store.replace_provider_token(token, &sealed).await?;
        Ok(Some(is_replaced))
    }
}
