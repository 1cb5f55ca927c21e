//! One declaration per setting: the macro [`settings!`](crate::settings).
//!
//! # How to add a key
//!
//! Add a field to the declaration of its table:
//!
//! ```
//! # use postern_core::settings;
//! settings! {
//!     /// Queue and delivery.
//!     #[derive(Debug)]
//!     pub struct QueueConfig(table) {
//!         /// PostgreSQL connections of the queue.
//!         ///
//!         /// One for inserts, one for results, one for each channel, one for reads.
//!         pub connections: u32 = 6 => |field| field.integer(3..=100),
//!     }
//! }
//! # let config = postern_core::decode::defaults(QueueConfig::read);
//! # assert_eq!(config.connections, 6);
//! ```
//!
//! Then run `POSTERN_TEST_WRITE_SCHEMAS=1 cargo test every_key` (twice, if a key of all programs was
//! added: their table comes last), which writes the JSON schema and the
//! table of `docs/reference/configuration.md`. A key that operators change has a line in the shipped
//! file as well; the same test compares it with the default, or reads it where it is commented out.
//!
//! - The first paragraph of the **doc comment** is the description in the reference and in the
//!   schema. A key that a reload does not change says "Read at start.".
//! - The **reader** behind `=>` gets the [`Field`](super::Field): type and range. It calls
//!   [`Field::typed`](super::Field::typed) where the type needs a name of its own. It may use
//!   the parameters of the table and the keys above it, which are `Option`s; `None` is a mistake.
//! - The **default** behind `=` is written as in the file, and read by the same reader. `None`: the key
//!   is optional, the field an `Option`. `{}`: an absent table is read as an empty one. `{ expression
//!   } ("words")`: computed, as an `Option`; the words stand in the reference, as those of `None
//!   ("words")` do. Without a default the key is required. `[..] ("message")`: a list that must not be
//!   empty; the reader reads an item.
//! - `as name` behind a field is its **key**, where the two differ.
//! - A field `= (expression)` without a reader has no key: a value of several keys, or of the
//!   environment. The expression is an `Option`.
//! - `=> expression` behind the struct checks several keys, also if some of them have mistakes.
//!
//! `fn name(table) -> Type { … } => expression` declares the keys of a type that is defined elsewhere;
//! its fields are variables of the expression. A key whose reader chooses between forms by another
//! key, such as the kind of a provider, needs a sample of each in the test `every_key`.

use super::{Mistakes, Node, Object, Value};

/// Returns the settings of an empty table.
pub fn defaults<T>(read: impl FnOnce(&Object<'_>) -> Option<T>) -> T {
    let root = Node::new(Value::Object(Vec::new()));
    let settings = Mistakes::default().object(&root, read);
    settings.expect("every setting has a default")
}

/// Declares the keys of a table: struct or function, reader, default, reference and schema. See the
/// module `decode::settings` for the syntax.
#[macro_export]
macro_rules! settings {
    (
        $(#[doc = $about:literal])*
        $(#[derive $derives:tt])?
        $vis:vis struct $name:ident($table:ident $(, $context:ident: $type:ty)* $(,)?) {
            $(
                $(#[doc = $doc:literal])*
                $field_vis:vis $field:ident $(as $key:ident)?: $ty:ty
                    $(= $default:tt $(($words:tt))?)? $(=> $read:expr)?
            ),+ $(,)?
        } $(=> $check:expr)?
    ) => {
        $(#[doc = $about])*
        $(#[derive $derives])?
        $vis struct $name {
            $($(#[doc = $doc])* $field_vis $field: $ty,)+
        }

        impl $name {
            /// Reads the keys of the table. `None`: a mistake was recorded.
            $vis fn read($table: &$crate::decode::Object<'_> $(, $context: $type)*) -> Option<Self> {
                $table.declare_table(&[$($about),*]);
                $(
                    let $field: Option<$ty> = $crate::settings!(
                        @read $table $name [$($key)? $field] [$($doc),*] [$($default $(($words))?)?] [$($read)?]
                    );
                )+
                $($check;)?
                Some(Self { $($field: $field?,)+ })
            }
        }
    };

    (
        $(#[doc = $about:literal])*
        $vis:vis fn $name:ident($table:ident $(, $context:ident: $type:ty)* $(,)?) -> $result:ty {
            $(
                $(#[doc = $doc:literal])*
                $field:ident $(as $key:ident)?
                    $(= $default:tt $(($words:tt))?)? $(=> $read:expr)?
            ),+ $(,)?
        } => $value:expr
    ) => {
        $(#[doc = $about])*
        $vis fn $name($table: &$crate::decode::Object<'_> $(, $context: $type)*) -> Option<$result> {
            $(
                let $field = $crate::settings!(
                    @read $table $name [$($key)? $field] [$($doc),*] [$($default $(($words))?)?] [$($read)?]
                );
            )+
            $(let $field = $field?;)+
            // A field may be used by the readers of others only.
            $(let _ = &$field;)+
            Some($value)
        }
    };

    // The expression that reads a field, an `Option`. `[$key …]` has the key first.
    (@read $table:ident $name:ident $key:tt $doc:tt [($part:expr)] []) => {
        $part
    };
    (@read $table:ident $name:ident [$key:ident $($field:ident)?] $doc:tt [] [$read:expr]) => {{
        $crate::settings!(@declare $table $name $key $doc "");
        $table.required(stringify!($key), $read)
    }};
    (@read $table:ident $name:ident [$key:ident $($field:ident)?] $doc:tt [[..] ($absent:tt)] [$read:expr]) => {{
        $crate::settings!(@declare $table $name $key $doc "");
        Some($table.non_empty_list(stringify!($key), $absent, $read))
    }};
    (@read $table:ident $name:ident [$key:ident $($field:ident)?] $doc:tt [None] [$read:expr]) => {{
        $crate::settings!(@declare $table $name $key $doc "none");
        Some($table.optional(stringify!($key), $read))
    }};
    (@read $table:ident $name:ident [$key:ident $($field:ident)?] $doc:tt [None ($words:literal)] [$read:expr]) => {{
        $crate::settings!(@declare $table $name $key $doc $words);
        Some($table.optional(stringify!($key), $read))
    }};
    (@read $table:ident $name:ident [$key:ident $($field:ident)?] $doc:tt [{}] [$read:expr]) => {{
        $crate::settings!(@declare $table $name $key $doc "");
        $table.or_empty(stringify!($key), $read)
    }};
    (@read $table:ident $name:ident [$key:ident $($field:ident)?] $doc:tt [{ $default:expr } ($words:literal)] [$read:expr]) => {{
        $crate::settings!(@declare $table $name $key $doc $words);
        $table.optional(stringify!($key), $read).or_else(|| $default)
    }};
    (@read $table:ident $name:ident [$key:ident $($field:ident)?] $doc:tt [$default:tt] [$read:expr]) => {{
        $crate::settings!(@declare $table $name $key $doc "");
        Some($table.or_value(stringify!($key), $default, $read))
    }};
    (@declare $table:ident $name:ident $key:ident $doc:tt $words:literal) => {
        $table.declare(stringify!($key), concat!(module_path!(), stringify!($name)), &$doc, $words)
    };
}
