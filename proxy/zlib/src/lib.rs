//! A zlib for Pingora that builds without cmake.
//!
//! `pingora-core` uses the `zlib-ng` backend of `flate2`, whose crate `libz-ng-sys` requires cmake.
//! This crate replaces it (`[patch.crates-io]` in the workspace manifest) by `libz-rs-sys`, the
//! same functions written in Rust. One type differs between the two: here the allocator of a stream
//! is never absent, so that the stream type is declared again and passed by pointer.
#![no_std]
#![expect(non_camel_case_types, non_snake_case, reason = "the names are zlib's")]
#![expect(
    missing_docs,
    clippy::missing_safety_doc,
    reason = "the contracts are zlib's"
)]
#![expect(
    unsafe_code,
    reason = "an interface of C, passed on as it is; nothing else of ours needs it"
)]

use core::ffi::{c_char, c_int, c_uint, c_ulong, c_void};
use core::mem::{offset_of, size_of};

pub use libz_rs_sys::{
    Z_BLOCK, Z_BUF_ERROR, Z_DATA_ERROR, Z_DEFAULT_STRATEGY, Z_DEFLATED, Z_FINISH, Z_FULL_FLUSH,
    Z_MEM_ERROR, Z_NEED_DICT, Z_NO_FLUSH, Z_OK, Z_PARTIAL_FLUSH, Z_STREAM_END, Z_STREAM_ERROR,
    Z_SYNC_FLUSH, internal_state, zlibVersion,
};

pub type uInt = c_uint;
pub type alloc_func = unsafe extern "C" fn(*mut c_void, uInt, uInt) -> *mut c_void;
pub type free_func = unsafe extern "C" fn(*mut c_void, *mut c_void);

#[repr(C)]
pub struct z_stream {
    pub next_in: *mut u8,
    pub avail_in: uInt,
    pub total_in: c_ulong,
    pub next_out: *mut u8,
    pub avail_out: uInt,
    pub total_out: c_ulong,
    pub msg: *mut c_char,
    pub state: *mut internal_state,
    pub zalloc: alloc_func,
    pub zfree: free_func,
    pub opaque: *mut c_void,
    pub data_type: c_int,
    pub adler: c_ulong,
    pub reserved: c_ulong,
}

pub type z_streamp = *mut z_stream;

// The cast below is sound only while both streams have one layout.
const _: () = {
    assert!(size_of::<z_stream>() == size_of::<libz_rs_sys::z_stream>());
    assert!(offset_of!(z_stream, state) == offset_of!(libz_rs_sys::z_stream, state));
    assert!(offset_of!(z_stream, zalloc) == offset_of!(libz_rs_sys::z_stream, zalloc));
    assert!(offset_of!(z_stream, opaque) == offset_of!(libz_rs_sys::z_stream, opaque));
    assert!(offset_of!(z_stream, adler) == offset_of!(libz_rs_sys::z_stream, adler));
};

macro_rules! forward {
    ($($name:ident($($argument:ident: $kind:ty),*);)*) => {
        $(pub unsafe extern "C" fn $name(strm: z_streamp $(, $argument: $kind)*) -> c_int {
            // SAFETY: the caller keeps zlib's contract for `strm`, whose layout is the same on both
            // sides.
            unsafe { libz_rs_sys::$name(strm.cast() $(, $argument)*) }
        })*
    };
}

forward! {
    deflate(flush: c_int);
    deflateEnd();
    deflateInit2_(
        level: c_int, method: c_int, window_bits: c_int, mem_level: c_int, strategy: c_int,
        version: *const c_char, stream_size: c_int
    );
    deflateParams(level: c_int, strategy: c_int);
    deflateReset();
    deflateSetDictionary(dictionary: *const u8, length: uInt);
    inflate(flush: c_int);
    inflateEnd();
    inflateInit2_(window_bits: c_int, version: *const c_char, stream_size: c_int);
    inflateReset();
    inflateReset2(window_bits: c_int);
    inflateSetDictionary(dictionary: *const u8, length: uInt);
}
