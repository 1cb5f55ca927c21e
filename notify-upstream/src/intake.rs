//! Intake: from a parsed request to a committed notification.
//!
//! A JSON object enters; [`request`] validates it against the schema, the caller's rights and the
//! template, [`quota`] bounds how many notifications a caller may submit, and [`group_commit`]
//! writes what arrives during a commit with one further statement. A committed notification leaves
//! either leased, for immediate delivery, or waiting in the queue.
//!
//! Depends on `templates`, `principal`, `store` and `dispatch`.

pub(crate) mod group_commit;
pub(crate) mod quota;
pub(crate) mod request;
