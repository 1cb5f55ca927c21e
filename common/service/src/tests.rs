//! The reference of the settings of all programs.

use postern_core::config::{Env, read_admin};
use postern_core::decode::Object;
use postern_core::identity::TrustConfig;
use postern_core::testing::DeclaredSettings;

use crate::log::Log;
use crate::trace::TracingConfig;

#[test]
fn every_key_of_all_programs_is_in_the_reference() {
    let env = Env::default();
    let read_log = |root: &Object<'_>| Some(Log::read_section(root, &env));
    DeclaredSettings::record("", read_log).assert_documented("log");
    let read = |root: &Object<'_>| {
        let _admin = read_admin(root, None, &env);
        let _tracing = TracingConfig::read_optional(root, &env);
        TrustConfig::read(root, &env)
    };
    DeclaredSettings::record("", read).assert_documented("all processes");
}
