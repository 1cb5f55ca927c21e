//! What operators do with notifications, dead letters, templates and suppression lists. The commands
//! of `cli` and the admin routes of `http` both call these functions.
//!
//! Input: a store and a selection. Output: rows for people and programs. Depends on `address`,
//! `delivery`, `dispatch`, `notification`, `store` and `templates`.

pub(crate) mod dead;
pub(crate) mod queue;
pub(crate) mod suppression;
pub(crate) mod templates;
