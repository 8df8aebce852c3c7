// Edges of a photograph: luminance, a separable Gaussian blur, then Sobel.

static int at(int x, int y, int w, int h) {
    return clamp(y, 0, h - 1) * w + clamp(x, 0, w - 1);
}

kernel void luminance(global const uchar4 *rgba, global float *grey, int w, int h) {
    int x = get_global_id(0), y = get_global_id(1);
    float4 p = convert_float4(rgba[y * w + x]);
    grey[y * w + x] = dot(p.xyz, (float3)(0.2126f, 0.7152f, 0.0722f));
}

// One direction (dx, dy) of a Gaussian with sigma 1.6 and radius 5.
kernel void blur(global const float *in, global float *out, int w, int h, int dx, int dy) {
    int x = get_global_id(0), y = get_global_id(1);
    float sum = 0.0f, weights = 0.0f;
    for (int k = -5; k <= 5; k++) {
        float weight = exp(-(float)(k * k) / (2.0f * 1.6f * 1.6f));
        sum += weight * in[at(x + k * dx, y + k * dy, w, h)];
        weights += weight;
    }
    out[y * w + x] = sum / weights;
}

kernel void sobel(global const float *in, global uchar *edges, int w, int h) {
    int x = get_global_id(0), y = get_global_id(1);
    float a = in[at(x - 1, y - 1, w, h)], b = in[at(x, y - 1, w, h)], c = in[at(x + 1, y - 1, w, h)];
    float d = in[at(x - 1, y, w, h)],                                 f = in[at(x + 1, y, w, h)];
    float g = in[at(x - 1, y + 1, w, h)], i = in[at(x, y + 1, w, h)], j = in[at(x + 1, y + 1, w, h)];
    float gx = c + 2.0f * f + j - a - 2.0f * d - g;
    float gy = g + 2.0f * i + j - a - 2.0f * b - c;
    edges[y * w + x] = convert_uchar_sat(2.0f * sqrt(gx * gx + gy * gy));
}
