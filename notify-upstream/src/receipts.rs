//! Delivery reports of providers and mail servers about messages after they were sent.
//!
//! The raw body of a provider's [`webhook`] or a delivery status notification ([`dsn`], RFC 3464)
//! enters; authenticated [`ProviderReport`](crate::delivery::report::ProviderReport)s leave, which
//! the caller stores and passes to the suppression list.
//!
//! Depends on `notification`, `address`, `store` and `delivery`.

pub(crate) mod dsn;
pub(crate) mod webhook;
