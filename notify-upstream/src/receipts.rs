//! Delivery reports of providers and mail servers about messages after they were sent.
//!
//! The raw body of a provider's [`webhook`], a delivery status notification (RFC 3464) or a
//! complaint (RFC 5965, both [`dsn`]) enters; authenticated [`ProviderReport`](crate::store::ProviderReport)s leave, which
//! the caller stores and passes to the suppression list.
//!
//! Depends on `notification`, `address`, `store` and `delivery`.

mod bounce;
pub(crate) mod dsn;
pub(crate) mod webhook;
