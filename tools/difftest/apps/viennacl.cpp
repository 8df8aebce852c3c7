// viennacl: BLAS, a sparse product and a solver of ViennaCL's on the first OpenCL device, against plain loops.
#define VIENNACL_WITH_OPENCL
#include <viennacl/compressed_matrix.hpp>
#include <viennacl/linalg/cg.hpp>
#include <viennacl/linalg/inner_prod.hpp>
#include <viennacl/linalg/norm_2.hpp>
#include <viennacl/linalg/prod.hpp>
#include <viennacl/matrix.hpp>
#include <viennacl/vector.hpp>

#include <cmath>
#include <cstdio>
#include <map>
#include <vector>

template <class T> static void run(const char *type, double least)
{
	const size_t n = 200;
	std::vector<std::vector<T>> a(n, std::vector<T>(n)), b(a), c(a);
	std::vector<std::map<unsigned, T>> s(n);
	std::vector<T> x(n), y(n);
	for (size_t i = 0; i < n; i++) {
		x[i] = T(i % 17) / 8;
		for (size_t k = 0; k < n; k++) {
			a[i][k] = T((i * 7 + k * 3) % 23) / 16;
			b[i][k] = T((i * 5 + k * 11) % 19) / 16;
		}
		s[i][i] = 4;
		if (i > 0) s[i][i - 1] = -1;
		if (i + 1 < n) s[i][i + 1] = -1;
	}
	viennacl::matrix<T> da(n, n), db(n, n), dc(n, n);
	viennacl::vector<T> dx(n), dy(n);
	viennacl::compressed_matrix<T> ds(n, n);
	viennacl::copy(a, da);
	viennacl::copy(b, db);
	viennacl::copy(x, dx);
	viennacl::copy(s, ds);
	dc = viennacl::linalg::prod(da, db);
	viennacl::copy(dc, c);
	double worst = 0;
	for (size_t i = 0; i < n; i++)
		for (size_t k = 0; k < n; k++) {
			double want = 0;
			for (size_t m = 0; m < n; m++)
				want += double(a[i][m]) * b[m][k];
			worst = std::max(worst, std::abs(want - c[i][k]) / (1 + std::abs(want)));
		}
	std::printf("%s matrix product: %s\n", type, worst < least ? "right" : "wrong");
	dy = viennacl::linalg::prod(da, dx);
	viennacl::copy(dy, y);
	worst = 0;
	for (size_t i = 0; i < n; i++) {
		double want = 0;
		for (size_t m = 0; m < n; m++)
			want += double(a[i][m]) * x[m];
		worst = std::max(worst, std::abs(want - y[i]) / (1 + std::abs(want)));
	}
	std::printf("%s matrix times vector: %s\n", type, worst < least ? "right" : "wrong");
	dy = viennacl::linalg::solve(ds, dx, viennacl::linalg::cg_tag(least / 10, 300));
	viennacl::vector<T> residual = viennacl::linalg::prod(ds, dy);
	residual -= dx;
	T off = viennacl::linalg::norm_2(residual), whole = viennacl::linalg::norm_2(dx);
	std::printf("%s conjugate gradients: %s\n", type, off / whole < least ? "right" : "wrong");
	T product = viennacl::linalg::inner_prod(dx, dx);
	double want = 0;
	for (size_t i = 0; i < n; i++)
		want += double(x[i]) * x[i];
	std::printf("%s inner product: %s\n", type, std::abs(product - want) / want < least ? "right" : "wrong");
}

int main()
{
	run<float>("float", 1e-4);
	if (viennacl::ocl::current_device().double_support())
		run<double>("double", 1e-10);
	return 0;
}
