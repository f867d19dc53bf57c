// Words to read in a storage texture, which CPU drivers read faster: see data_texture.wgsl.
@group(0) @binding(0) var x: texture_storage_2d<rgba32uint, read>; // [VEC4S * THREADS / 2048][2048]

fn words(i: u32) -> vec4<u32> {
    return textureLoad(x, vec2<u32>(i & 2047u, i >> 11u));
}
