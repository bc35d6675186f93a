//! `librdmacm.so.1`: connections by address, over the connection manager that lives in Feroce's `libibverbs.so.1`.

mod rsocket;
