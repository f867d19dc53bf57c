// Words to read in a storage buffer.
@group(0) @binding(0) var<storage, read> x: array<vec4<u32>>; // [VEC4S][THREADS]

fn words(i: u32) -> vec4<u32> {
    return x[i];
}
