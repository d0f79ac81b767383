# Short names for the project's commands; `cargo xtask --help` lists them all.

# Build and run every test.
test *arguments:
    cargo xtask test {{arguments}}

# The read-only gate: format, lints, tests, docs, licences, tidy, a short simulation.
verify:
    cargo xtask verify

# Write what can be mended by itself.
fix:
    cargo xtask fix

# The main job of Ottla, under SIGKILL, in under a minute.
demo *arguments:
    cargo run --release -- demo {{arguments}}
